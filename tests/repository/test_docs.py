"""README, docs and examples: generated pages are in step, commands parse, links resolve, and everything runs.

Running is for ``./ci/test --all``: the ``python`` blocks of a page in one namespace and the ``posexport`` lines of its
``bash`` blocks, in the page's order, in a fresh folder with tiny checkpoints (`docs_models`).
"""

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import docs_models
import msgspec
import pytest
from click.testing import CliRunner

import posexport
import posexport.nn
import posexport.testing
from posexport.base import spec
from posexport.base.options.recipe import Recipe
from posexport.cli import group
from posexport.proof.report.points import Point
from posexport.run.bundle import manifest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: every block of the two that run is run, or says why not; the others are for reading
RUN, READ = ("bash", "python"), ("html", "javascript", "json", "mermaid", "pycon", "text", "toml", "yaml")
#: blocks with a reason not to run, so that another one is noticed
NOT_RUN = {
    "README.md": 1,
    "checkpoints.md": 3,
    "clients.md": 4,
    "cuda.md": 3,
    "decoder-graphs.md": 1,
    "embedders.md": 5,
    "late-interaction.md": 6,
    "layouts.md": 3,
    "optimize.md": 1,
    "parity.md": 3,
    "performance.md": 2,
    "pictures-and-sound.md": 6,
    "pictures-in-prompts.md": 2,
    "providers.md": 2,
    "quickstart.md": 2,
    "rerankers.md": 2,
    "scoreboard.md": 1,
    "search-engines.md": 1,
    "sources.md": 1,
}


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its fence, ``reason`` why it is not run, ``file`` what it is saved as."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    file: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found, lines = [], page.read_text().splitlines()
    at, before = 0, ""
    while at < len(lines):
        if fence := re.match(r"\s*```(\S*)", lines[at]):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            marker = re.fullmatch(r"<!-- (not run|file): (.+) -->", before.strip())
            reason, file = (marker[2] if marker and marker[1] == kind else None for kind in ("not run", "file"))
            body = "\n".join(lines[at + 1 : end]) + "\n"
            found.append(Block(page.name, at + 1, fence[1], body, reason, file))
            at, before = end, ""
        elif lines[at].strip():
            before = lines[at]
        at += 1
    return found


BLOCKS = {page.name: blocks(page) for page in PAGES}


def commands(block: Block) -> list[list[str]]:
    """The lines of a ``bash`` block as words, without comments."""
    text = block.text.replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line.removeprefix("$ "), comments=True))]


def posexport_commands() -> list[tuple[str, list[str]]]:
    """Every ``posexport`` command line of the pages, in blocks and in running text, with where it stands."""
    found = []
    for page in PAGES:
        for block in BLOCKS[page.name]:
            if block.language == "bash":
                found += [(f"{page.name}:{block.line}", words) for words in commands(block) if words[0] == "posexport"]
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found += [(page.name, shlex.split(code)) for code in re.findall(r"`(posexport [a-z][^`]*)`", prose)]
    return found


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and what they give it."""
    command: click.Command = group
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"there is no command {rest[0]}"
        command, rest = below, rest[1:]
    return command, rest


@pytest.fixture(scope="module")
def write_docs() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "ci")
        yield importlib.import_module("write_docs")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_pages_are_in_step(page: Path, write_docs: ModuleType) -> None:
    assert write_docs.filled(page.read_text()) == page.read_text(), "run python ci/write_docs.py"


def test_every_generated_block_has_a_place(write_docs: ModuleType) -> None:
    placed = {name for page in PAGES for name in write_docs.names(page.read_text())}
    assert placed == set(write_docs.BLOCKS)
    with pytest.raises(ValueError, match="no generated block is called nonesuch"):
        write_docs.filled("<!-- nonesuch -->\n<!-- end -->\n")
    assert write_docs.filled("<!-- layers -->\nold\n<!-- end -->\n") != "<!-- layers -->\nold\n<!-- end -->\n"


def test_the_readme_is_short() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 110
    assert not [line for line in lines if len(line) > 140 and not line.startswith(("|", "- "))]


def test_every_block_is_run_or_says_why_not() -> None:
    every = [block for page in BLOCKS.values() for block in page]
    assert not [block for block in every if block.language not in RUN + READ]
    assert not [block for block in every if block.reason and block.language not in RUN]
    assert Counter(block.page for block in every if block.reason) == NOT_RUN
    for block in every:
        if block.language == "bash" and block.reason is None:
            for words in commands(block):
                assert words[0] == "posexport" or (ROOT / words[0]).is_file(), f"{block.page}:{block.line}: {words}"


def test_commands_in_the_pages_parse() -> None:
    """Every option is one of the command's, and every value of a choice one of its choices."""
    checked = 0
    for where, words in posexport_commands():
        command, rest = resolve(words)
        options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        for word, value in zip(rest, [*rest, ""][1:], strict=True):
            if not re.match(r"--?[a-z]", word):
                continue
            name, equals, inline = word.partition("=")
            assert name in options or name in ("-h", "--help", "--version"), f"{where}: {shlex.join(words)}: {name}"
            kind = options[name].type if name in options else None
            given = inline if equals else value
            if isinstance(kind, click.Choice) and "|" not in given and not given.isupper():
                assert given in kind.choices, f"{where}: {shlex.join(words)}: {given}"
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("words", [["convert", "x", "--outptu", "y"], ["convrt"], ["list", "--json", "--for"]])
def test_a_command_that_does_not_parse_is_noticed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "posexport_commands", lambda: [("here", ["posexport", *words])])
    with pytest.raises(AssertionError, match=r"outptu|convrt|--for"):
        test_commands_in_the_pages_parse()


def test_links_of_the_readme_resolve() -> None:
    """Those between the pages are checked when the site is built."""
    text = re.sub(r"```.*?```", "", README.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("http")]
    assert len(targets) > 5
    for target in targets:
        path, _, anchor = target.partition("#")
        file = ROOT / path
        assert file.is_file(), target
        heads = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
        slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}
        assert not anchor or anchor in slugs, target


def test_the_table_of_lowerings_has_them_all() -> None:
    from posexport.graph.lowering.plan import FAMILIES

    text = (ROOT / "docs" / "targets.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", text, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(named) == sorted({lowering.name for family in FAMILIES for lowering in family.lowerings})


def test_examples_are_short_and_explained() -> None:
    assert 5 <= len(EXAMPLES) <= 6
    for example in EXAMPLES:
        lines = example.read_text().splitlines()
        assert len(lines) <= 40, example.name
        assert lines[0].startswith('"""')
        assert any(line.startswith(f"Usage: python examples/{example.name}") for line in lines)


def tutorial_models() -> list[str]:
    """The models of the table of tutorials, with their settings."""
    page = (ROOT / "docs" / "sources.md").read_text()
    table = page[page.index("| in the tutorials") :]
    found = sorted(set(re.findall(r"`((?:encoder|decoder)-[^`]*)`", table)))
    assert len(found) > 20
    return found


@pytest.mark.all
@pytest.mark.parametrize("command", tutorial_models())
def test_every_model_of_the_tutorials_converts(command: str, tmp_path: Path) -> None:
    name, *settings = command.split()
    arguments = [name, *settings, "--set", "layers=1", "--length", "1", "--length", "17", "--threads", "1"]
    result = CliRunner().invoke(group, ["convert", *arguments, "-o", str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    assert "checked at 1, 17 tokens" in result.output


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints and bundles under the names of the pages."""
    folder = tmp_path_factory.mktemp("models")
    for name in (*docs_models.CHECKPOINTS, *docs_models.ZERO_SHOT):
        docs_models.checkpoint(name, folder / name)
    for bundle, source in docs_models.BUNDLES.items():
        posexport.convert(folder / source, folder / bundle, lengths=[1, 17], threads=1)
    return folder


@pytest.fixture
def workplace(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with links to checkpoints, and encodings as they were afterwards."""
    from posexport.encodings import encoding as registry

    before = set(registry.ENCODINGS)
    for name in (*docs_models.CHECKPOINTS, *docs_models.ZERO_SHOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "corpus.txt").write_text("the lowest and the newest of the widest cats sat low on the mat\n" * 20)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in registry.ENCODINGS if name not in before]:
        del registry.ENCODINGS[name]


def runnable(page: Path) -> list[Block]:
    blocks = BLOCKS[page.name]
    return [each for each in blocks if (each.file is not None or each.language in RUN) and each.reason is None]


@pytest.mark.all
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_a_page_runs(page: Path, workplace: Path, models: Path) -> None:
    text = "\n".join(block.text for block in runnable(page))
    for bundle in docs_models.BUNDLES:
        if not re.search(rf'(-o {bundle}\s)|(convert\(.*, "{bundle}"\))', text):
            (workplace / bundle).symlink_to(models / bundle)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in runnable(page):
        if block.file is not None:
            Path(block.file).write_text(block.text)
            continue
        if block.language == "python":
            exec(compile(block.text, f"{page.name}, from line {block.line}", "exec"), namespace)
            continue
        for words in commands(block):
            if words[0] == "posexport":
                result = CliRunner().invoke(group, words[1:])
                assert result.exit_code == 0, f"{page.name}:{block.line}: {shlex.join(words)}: {result.output}" + str(
                    result.exception
                )


ARGUMENTS = {
    "convert_bert.py": ["all-MiniLM-L6-v2"],
    "generate.py": ["SmolLM2", "generated"],
    "run_without_torch.py": ["minilm"],
}


@pytest.mark.all
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example: Path, workplace: Path, models: Path) -> None:
    if example.name == "run_without_torch.py":
        (workplace / "minilm").symlink_to(models / "minilm")
    command = [sys.executable, example, *ARGUMENTS.get(example.name, [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    pytest.importorskip("mkdocs", reason="mkdocs comes with the extra dev")
    folder = tmp_path_factory.mktemp("site")
    # without -q, which hides the warnings that --strict counts
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_is_documented(site: Path) -> None:
    anchors = set(re.findall(r'id="([^"]*)"', (site / "api" / "index.html").read_text()))
    names = {f"posexport.{name}" for name in posexport.__all__ if not name.startswith("_")}
    for module in (posexport.nn, posexport.testing):
        names |= {
            f"{module.__name__}.{name}"
            for name, thing in vars(module).items()
            if not name.startswith("_") and not isinstance(thing, ModuleType)
        }
    assert names <= anchors, names - anchors
    assert {"posexport.Session.generate", "posexport.Report.to_text"} <= anchors, "methods are shown"


def all_commands(command: click.Command, path: str = "posexport") -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, with their full names."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from all_commands(below, f"{path} {name}")


def test_every_command_and_option_is_documented(site: Path) -> None:
    page = (site / "command-line" / "index.html").read_text()
    sections = dict(re.findall(r'<h\d id="([^"]*)"(.*?)(?=<h\d id=|\Z)', page, re.DOTALL))
    commands_found = dict(all_commands(group))
    assert len(commands_found) > 10
    for name, command in commands_found.items():
        section = sections[name.replace(" ", "-")]
        for option in (each for each in command.params if isinstance(each, click.Option)):
            assert option.opts[-1] in section, f"{name} {option.opts[-1]}"
            assert option.help, f"{name} {option.opts[-1]}"
        if len(name.split()) == 2 and not isinstance(command, click.Group):
            assert re.search(r"<p>Examples?:</p>\s*<pre", section), f"{name}: no example in a block of its own"


#: the records whose fields docs/bundle-format.md shows
RECORDS = [each for each in vars(manifest).values() if getattr(each, "__module__", "") == manifest.__name__]
RECORDS = [each for each in RECORDS if isinstance(each, type) and not each.__name__.startswith("_")]
RECORDS += [spec.InputSpec, spec.OutputSpec, spec.PartSpec, spec.EncodingSpec, spec.Limits, Point]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_bundle_is_documented(record: type[msgspec.Struct], site: Path) -> None:
    """By its name in JSON, in the docstring of the record or of one that it extends, which the page shows."""
    page = (site / "bundle-format" / "index.html").read_text()
    documented: set[str] = set()
    for base in record.__mro__:
        if "Attributes:" in (doc := inspect.cleandoc(vars(base).get("__doc__") or "")):
            assert f'id="{base.__module__}.{base.__name__}"' in page, base
            documented |= set(re.findall(r"^    (\w+): ", doc, flags=re.MULTILINE))
    assert documented == {field.encode_name for field in msgspec.structs.fields(record)}


def test_every_key_of_a_recipe_is_an_option_or_documented() -> None:
    recipe = inspect.getdoc(Recipe) or ""
    command = group.get_command(click.Context(group), "convert")
    assert command is not None
    options = {each.name for each in command.params} | {
        name.removeprefix("--").replace("-", "_") for each in command.params for name in each.opts
    }
    for field in msgspec.structs.fields(Recipe):
        assert field.name in options or f"    {field.name}: " in recipe, field.name


def test_the_reference_has_options_as_the_functions_take_them(site: Path) -> None:
    """Signatures and descriptions are made from records when posexport is imported, which griffe does not do."""
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert "OPTIONS" not in page
    for name, function in (("convert", posexport.convert), ("load", posexport.load)):
        section = page.split(f'id="posexport.{name}"')[1].split("<h2")[0]
        for option in inspect.signature(function).parameters:
            assert section.count(option) >= 2, (name, option)


def test_every_page_has_a_description(site: Path) -> None:
    """What search engines show of it: its first paragraph."""
    pages = [page for page in site.rglob("index.html") if "examples" not in page.parts]
    assert len(pages) > 30
    for page in pages:
        found = re.findall(r'<meta name="description" content="([^"]*)">', page.read_text(encoding="utf-8"))
        assert len(found) == 1, page
        assert len(found[0]) > 40, (page, found)

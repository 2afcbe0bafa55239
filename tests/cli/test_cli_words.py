"""What the command line answers to words that are nearly right, old, or another tool's, and what it lists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import posexport
from posexport import cli
from posexport.base.options.check import closest
from posexport.base.system.files import size_text
from posexport.catalogue import stored as catalogue
from posexport.cli import COMMANDS, group
from posexport.cli.command import COMMANDS as OTHER_COMMANDS
from posexport.cli.command import OPTIONS, Command, about_option
from posexport.cli.list import KINDS
from posexport.encodings.encoding import ENCODINGS, Entry
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError

ROOT = Path(__file__).parents[2]


def answer(*args: str) -> str:
    """What the user reads where a command cannot be run: exit code 2, nothing on stdout."""
    done = CliRunner().invoke(group, list(args))
    assert done.exit_code == 2 or isinstance(done.exception, PosexportError), done.output
    assert done.stdout == ""
    return str(done.exception) if isinstance(done.exception, PosexportError) else done.stderr


def commands() -> dict[str, Command]:
    found = {name: group.get_command(click.Context(group), name) for name in COMMANDS}  # type: ignore[attr-defined]
    return {name: command for name, command in found.items() if isinstance(command, Command)}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["convrt"], "did you mean convert?"),
        (["tokenizer", "trian"], "did you mean train?"),
        (["list", "encoding"], "did you mean encodings?"),
        (["convert", "encoder-ropee", "-o", "out"], "did you mean encoder-rope?"),
        (["convert", "encoder-nope", "-o", "out", "--task", "sentence-embeddings"], "did you mean sentence-embedding?"),
        (["convert", "encoder-nope", "-o", "out", "--task", "embedding"], "did you mean sentence-embedding?"),
        (["convert", "encoder-nope", "-o", "out", "--lowering", "blockwize"], "did you mean blockwise?"),
        (["convert", "encoder-shaw-kv", "-o", "out", "--set", "clp=8"], "did you mean clip? It has clip, vocab"),
        (["plot", "--check", "sinusoid"], "unknown encoding 'sinusoid'; did you mean sinusoidal?"),
        (["plot", "--check", "rope", "--set", "hiden=8"], "did you mean hidden?"),
        (["plot", "Relative_Key", "-o", "x.png"], "did you mean relative-key?"),
        (["compare", "-o", "out", "--encodings", "ropes"], "did you mean rope?"),
        (["convert", "encoder-nope", "-o", "out", "--max-lenght", "3"], "did you mean --max-length?"),
        (["frobnicate"], "No such command 'frobnicate'; see posexport --help"),
        (["run", "b", "--frobnicate"], "No such option --frobnicate; see posexport run --help"),
        (["plot", "--check", "frobnicate"], "unknown encoding 'frobnicate'; see posexport list encodings"),
    ],
)
def test_a_word_that_is_nearly_right_is_guessed(
    args: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in " ".join(answer(*args).split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "known", "match"),
    [
        ("mamba", ["llama", "bloom"], None),
        ("gpt", ["gpt2"], "gpt2"),
        ("Relative_Keys", ["rope", "relative-key"], "relative-key"),
        ("", ["rope"], None),
    ],
)
def test_nothing_is_guessed_where_nothing_is_close(word: str, known: list[str], match: str | None) -> None:
    assert closest(word, known) == match


@pytest.mark.parametrize("name", sorted(OTHER_COMMANDS))
def test_commands_of_other_tools_are_answered(name: str) -> None:
    assert name not in COMMANDS
    assert f"posexport has no command {name!r}: {OTHER_COMMANDS[name]}" in answer(name)


def test_answers_name_commands_and_options_that_exist() -> None:
    sentences = [*OTHER_COMMANDS.values(), *OPTIONS.values()]
    options = {text for command in commands().values() for each in command.params for text in each.opts}
    for sentence in sentences:
        assert {*re.findall(r"posexport ([a-z-]+)", sentence)} <= {*COMMANDS, "writes", "optimizes"}, sentence
        named = {word for part in sentence.split("hf download")[::2] for word in re.findall(r"(?<!\S)--[a-z-]+", part)}
        assert named <= options | {"--text", "--local-dir"}, sentence


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["convert", "x", "--fp16"], "posexport convert SOURCE -o DIR --precision fp16"),
        (["convert", "x", "--dtype", "int8"], "posexport convert SOURCE -o DIR --precision fp16"),
        (["convert", "x", "--quantize=int8"], "posexport convert SOURCE -o DIR --precision fp16"),
        (["convert", "--model", "x"], "type posexport convert SOURCE"),
        (["convert", "-m", "x"], "type posexport convert SOURCE"),
        (["run", "--model_name", "x"], "type posexport run DIR"),
        (["convert", "x", "--output-dir", "out"], "type -o PATH"),
        (["convert", "x", "--trust_remote_code"], "nothing of a checkpoint directory is ever executed"),
        (["run", "x", "--device", "cuda"], "type --provider cpu or --provider cuda"),
    ],
)
def test_options_of_other_tools_are_answered(args: list[str], sentence: str) -> None:
    assert sentence in " ".join(answer(*args).split())


def test_no_option_of_ours_is_answered_as_another_tools() -> None:
    for name, command in commands().items():
        for option in (text for each in command.params for text in each.opts if text.startswith("-")):
            assert about_option(option, name, None) is None, option


def test_groups_of_the_help_name_parameters_that_exist() -> None:
    for name, command in commands().items():
        parameters = {each.name for each in command.params}
        named = [each for names in command.groups.values() for each in names]
        assert len(named) == len(set(named))
        assert set(named) <= parameters, name
        text = command.get_help(click.Context(command, info_name=name))
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in text, "an option that no group shows"
    assert [*commands()["convert"].groups][:2] == ["Source", "Lengths and KV cache"]


def test_what_commands_do_fits_into_the_list_of_commands() -> None:
    text = CliRunner().invoke(group, ["--help"], terminal_width=80).output
    lines = text.split("Commands:\n")[1].splitlines()
    assert len(lines) == len(COMMANDS)
    assert not [line for line in lines if "..." in line and "families" not in line]


# -- what is listed --------------------------------------------------------------------------------


def test_the_stored_catalogue_is_that_of_the_registries() -> None:
    stored = (ROOT / "posexport" / "catalogue" / catalogue.FILE).read_text("utf-8")
    assert stored == catalogue.as_text(), "run ci/catalogue"


def test_lists_and_wrong_paths_import_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from posexport.cli import group;"
        "run = lambda *args: CliRunner().invoke(group, args);"
        "print([run('list', kind).exit_code for kind in ('encodings', 'models', 'families', 'tasks', 'lowerings')]);"
        "print(run('convert', './nowhere', '-o', 'x').exception);"
        "print(run('convert', 'encoder-ropee', '-o', 'x').exception);"
        "print({'torch', 'onnx', 'onnxruntime', 'onnxscript', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    codes, path, name, heavy = done.stdout.splitlines()
    assert codes == "[0, 0, 0, 0, 0]", done.stderr
    assert path.startswith("no such directory: ./nowhere")
    assert name.endswith("did you mean encoder-rope?")
    assert heavy == "set()"


def test_an_encoding_that_the_process_registered_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mine" not in {row["name"] for row in posexport.list_available()}
    monkeypatch.setitem(ENCODINGS, "mine", Entry("mine", NoPE, {}, [{}], "Mine.", "none"))
    assert {"name": "mine", "what": "Mine."}.items() <= posexport.list_available()[-1].items()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "providers"])
def test_lists_are_plain_text(kind: str) -> None:
    done = CliRunner().invoke(group, ["list", kind])
    assert done.exit_code == 0
    assert "`" not in done.output
    names = catalogue.names(kind)
    assert set(names) <= set(done.output.split()), "a name that a line break cuts is no name"


def test_families_stand_by_task_and_models_by_kind() -> None:
    families = json.loads(CliRunner().invoke(group, ["list", "families", "--json"]).output)
    order = ["defined", "through transformers", "refused"]
    assert list(dict.fromkeys(row["how"] for row in families)) == order
    assert families == sorted(
        families, key=lambda row: (order.index(row["how"]), row["tasks"], row["what"], row["name"])
    )
    lines = CliRunner().invoke(group, ["list", "models"]).output.splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert len(heads) == len(set(heads)) < 10
    assert all(line.endswith(":") for line in heads)


def test_tasks_of_checkpoints_are_listed() -> None:
    assert {"text2text-generation", "automatic-speech-recognition"} <= set(catalogue.names("tasks"))


# -- completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "incomplete", "completed"),
    [
        (["convert"], "encoder-rope-y", ["encoder-rope-yarn"]),
        (["convert"], "my", ["my_model.py"]),
        (["convert"], "check", ["checkpoint"]),
        (["convert", "encoder-shaw-kv", "--set"], "cli", ["clip="]),
        (["convert", "x", "--task"], "token-", ["token-classification", "token-embedding"]),
        (["convert", "x", "--lowering"], "au", ["auto"]),
        (["plot"], "sinus", ["sinusoidal"]),
        (["compare", "--encodings"], "xp", ["xpos"]),
        (["run"], "", ["bundle"]),
        (["run"], "checkpoint/", ["checkpoint/inner"]),
        (["generate"], "che", ["checkpoint"]),
        (["verify"], "mod", ["model.onnx"]),
        (["verify", "bundle", "--against"], "encoder-xpo", ["encoder-xpos"]),
        ([], "conv", ["convert"]),
        (["convert", "x", "--targ"], "", None),
    ],
)
def test_the_shell_completes(
    args: list[str], incomplete: str, completed: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bundle", "checkpoint/inner", ".hidden"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("bundle/posexport.json", "checkpoint/inner/posexport.json", "my_model.py", "model.onnx", "notes.txt"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    completer = ShellComplete(group, {}, "posexport", "_POSEXPORT_COMPLETE")
    values = [item.value for item in completer.get_completions(args, incomplete)]
    if completed is not None:
        assert values == completed


# -- errors as JSON, sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        *([name, "--frobnicate"] for name in COMMANDS),
        ["frobnicate"],
        ["export", "x"],
        ["convert", "encoder-nope"],
        ["convert", "./nowhere", "-o", "out"],
        ["run", "nowhere", "--text", "x"],
        ["plot", "--check", "sinusoid"],
        ["list", "encoding"],
    ],
    ids=" ".join,
)
def test_errors_are_one_json_document_too(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["posexport", *args, "--json"])
    monkeypatch.setattr(cli, "_own_process", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (ended.value.code, document["exit_code"]) == (2, 2)
    assert document["error"] in " ".join(err.split())


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0 kB"), (788_300, "788.3 kB"), (91_500_000, "91.5 MB"), (2_100_000_000, "2.1 GB")],
)
def test_sizes_have_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text

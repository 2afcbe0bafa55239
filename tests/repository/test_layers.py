"""Imports only go down, and what a deployment machine needs imports no torch."""

import ast
import functools
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "posexport"

#: From the ground up; a package may import those on its own line and on lines above it.
CORE = [
    {"base", "errors", "version"},
    {"graph", "run"},
    {"encodings"},
    {"nn"},
    {"models"},
    {"sources"},
    {"proof"},
    {"conversion"},
]
#: They import the core and not each other, and the core finds them by registries (`posexport.base.registry`). Three
#: stand on others: `through` is a second maker of models for `checkpoints`, wrapped as `modules` wraps a user's;
#: `study` measures as `inspect` does; `folders` are checkpoints of other libraries.
EXTENSIONS = [{"checkpoints", "modules", "serve", "inspect"}, {"through", "study"}, {"folders"}]
STAND_ON = {
    "through": {"checkpoints", "modules"},
    "study": {"inspect"},
    "folders": {"checkpoints", "modules", "through"},
}
#: what people call: they import everything
SURFACES = [{"catalogue"}, {"api"}, {"testing", "sentence_transformers"}, {"cli"}, {"__main__"}]
LAYERS = [*CORE, *EXTENSIONS, *SURFACES]
#: Files that import a package and should not: file or folder, the package, and why it is still so.
EXCEPTIONS = [
    ("serve/drop_in", "modules", "the call of torch.onnx.export is about a module in memory, which `modules` calls"),
    ("run/session.py", "proof", "a session compares itself with the sample that the proof of its bundle stored"),
]
#: an ONNX file in, a better one out: records of nodes, recognition, lowering and precision need no PyTorch
COMPILER = ["graph", "base"]
#: Inside a wing, from the ground up; "" is what is in none of the folders that are named here.
PARTS = {
    "graph": ["", "ops", "lowering", "passes", "precision"],
    "run": ["tokenizer", "bundle", "", "images", "audio", "pipelines"],
    "sources": ["torch_fixes", ""],
    "conversion": ["export", ""],
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
#: encodings name their positions and terms, which attention takes; they know operators only
WITHOUT_TORCH = [
    "",
    ".api",
    ".errors",
    ".base.system.extras",
    ".base.spec",
    ".base.options.settings",
    ".base.targets.target",
    ".run.bundle.write",
    ".run.bundle.read",
    ".inspect.audit.audit",
    ".run.session",
    ".run.answer",
    ".run.audio",
    ".run.pipelines.registry",
]
WITHOUT_TORCH += [
    ".run.placement",
    ".proof.sample.check",
    ".proof.report.point_table",
    ".proof.criterion",
    ".proof.grid.grid",
    ".conversion.verification",
    ".catalogue.stored",
    ".base.system.files",
    ".run.tokenizer.byte_pair",
    ".run.tokenizer.make",
    ".serve.engines.batcher",
    ".serve.engines.service",
    ".serve.deploy.write",
    ".inspect.explain.explanation",
    ".inspect.explain.records",
    ".inspect.report.answers",
    ".inspect.report.drawings",
    ".inspect.report.kernels",
    ".inspect.report.report",
]


def parts() -> list[Path]:
    # rglob does not follow the symbolic link to models/
    found = [*ROOT.rglob("*.py"), *(ROOT / "models").glob("*.py")]
    return [p for p in sorted(found) if p.name != "__init__.py" or p.parent != ROOT]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names_imported(path: Path) -> set[str]:
    """Our modules that a file imports, wherever in the file, but for type checking only."""
    tree = parsed(path)
    only_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "posexport" else [f"posexport.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            names = [str(named.value).rstrip(".")] if isinstance(named, ast.Constant) else []
        else:
            continue
        found |= {name for name in names if name.startswith("posexport.")}
    return found


def imported(path: Path) -> set[str]:
    """The wings that a file imports."""
    return {name.split(".")[1] for name in names_imported(path)}


@functools.cache
def wrong_imports() -> list[tuple[str, str]]:
    """Every file with each package that it imports and may not: one above it, or another extension."""
    extensions = set().union(*EXTENSIONS)
    wrong = []
    for path in parts():
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for name in sorted(imported(path) - {package}):
            beside = {package, name} <= extensions and name not in STAND_ON.get(package, ())
            if LEVEL[name] > LEVEL[package] or beside:
                wrong.append((path.relative_to(ROOT).as_posix(), name))
    return wrong


def is_exception(file: str, name: str, exception: tuple[str, str, str]) -> bool:
    return file.startswith(exception[0]) and name == exception[1]


def test_imports_only_go_down_and_extensions_do_not_import_each_other() -> None:
    wrong = [pair for pair in wrong_imports() if not any(is_exception(*pair, each) for each in EXCEPTIONS)]
    assert not wrong, "\n".join(f"{file} imports {name}" for file, name in wrong)


def part(wing: str, folder: str) -> int:
    """The place of a wing's folder among its parts."""
    return PARTS[wing].index(folder if folder in PARTS[wing] else "")


def test_parts_of_a_wing_import_those_below_them() -> None:
    wrong = []
    for path in parts():
        wing, *rest = path.relative_to(ROOT).parts
        if wing in PARTS:
            ours = [name for name in names_imported(path) if name.startswith(f"posexport.{wing}.")]
            above = [name for name in ours if part(wing, name.split(".")[2]) > part(wing, rest[0])]
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in above]
    assert not wrong, "\n".join(wrong)


def modules_imported(path: Path, known: Collection[str]) -> set[str]:
    """The files that a file imports, for type checking too."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & set(known) or {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & set(known)


def test_files_do_not_import_each_other() -> None:
    """Not for types either: what two files need of each other belongs into a third, below both."""
    files = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in parts()}
    graph = {name: modules_imported(path, files.keys()) for name, path in files.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as err:
        pytest.fail(" imports ".join(reversed(err.args[1])))


def test_every_exception_is_one() -> None:
    wrong = wrong_imports()
    assert not [each for each in EXCEPTIONS if not any(is_exception(*pair, each) for pair in wrong)]


#: what names other libraries' folders beside `folders`, and why
NAMING = {
    "checkpoints/folder_kind.py": "a registry",
    "checkpoints/makers.py": "a registry",
    "sources/registry.py": "a registry",
    "base/system/extras.py": "the extras of the wheel",
    "base/spec.py": "the kinds of source in manifests",
    "base/tasks/table.py": "papers",
    "models/gliner.py": "definitions",
    "models/gliclass.py": "definitions",
    "through/types.py": "types that transformers has a class for",
}


def test_other_libraries_folders_are_named_in_their_wing_alone() -> None:
    """Bundles of them run without it: `run` names what it does as these libraries do."""
    words = re.compile(r"gliner|gliclass|chronos|\btimm|open_?clip", re.IGNORECASE)
    places = {path.relative_to(ROOT).as_posix() for path in parts() if words.search(path.read_text())}
    assert {place for place in places if place.split("/")[0] not in ("folders", "run")} == NAMING.keys()


def test_one_file_asks_the_exporter() -> None:
    """Every other one has both functions, and `traced_as` chooses: a model definition knows of no tracer."""
    asking = [path for path in parts() if "is_in_onnx_export" in path.read_text()]
    assert asking == [ROOT / "graph" / "ops" / "tracing.py"]


def test_every_package_has_a_layer() -> None:
    names = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in parts()}
    assert names == set(LEVEL)


def test_every_folder_of_modules_is_in_a_wheel() -> None:
    """A folder without ``__init__.py`` imports from a checkout, and is left out of what people install."""
    folders = {path.parent for place in (ROOT, ROOT / "models") for path in place.rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_imports_no_torch() -> None:
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module('posexport{module}')\nassert 'torch' not in sys.modules, 'posexport{module}'\n"
        for module in WITHOUT_TORCH
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_graph_compiler_imports_where_there_is_no_torch() -> None:
    """All files of it, in a process in which ``import torch`` fails."""
    files = [path for path in parts() if path.relative_to(ROOT).parts[0] in COMPILER]
    modules = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in files]
    code = "import importlib, sys\nsys.modules['torch'] = None\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from posexport.cli import group;"
        "print(CliRunner().invoke(group, ['--help']).output);"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'onnxscript', 'numpy', 'rich'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "convert" in done.stdout


def test_the_picture_leaves_out_what_a_chain_of_imports_implies() -> None:
    spec = importlib.util.spec_from_file_location("layers", ROOT.parent / "ci" / "layers.py")
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    assert layers.reduced({"a": {"b", "c"}, "b": {"c"}}) == {"a": {"b"}, "b": {"c"}}
    with pytest.raises(ValueError, match="a -> b -> a"):
        layers.reduced({"a": {"b"}, "b": {"a"}})

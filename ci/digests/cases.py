"""What is converted: golden checkpoints, tiny ones of the pages, users' modules, built-in models."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
#: by name: the options of `posexport.convert`; with int8 projections of any size are quantized, since those of most
#: golden checkpoints are so small that they would stay in float32
TARGETS: dict[str, dict[str, str]] = {
    "portable": {"target": "portable"},
    "cpu": {"target": "cpu"},
    "cpu-int8": {"target": "cpu", "precision": "int8"},
    "cpu-int4": {"target": "cpu", "precision": "int4"},
    "cuda-fp16": {"target": "cuda", "precision": "fp16"},
}
TWO = ("portable", "cpu")


@dataclass(frozen=True)
class Case:
    """A source: its name, the kind of model that it stands for, and what `posexport.convert` takes."""

    name: str
    family: str
    source: Callable[[Path], dict[str, Any]]
    targets: tuple[str, ...] = TWO
    options: dict[str, Any] = field(default_factory=dict)


def cases() -> dict[str, Case]:
    """All, by name."""
    found = [*_golden(), *_pages(), *_files(), *_listed(), *_builtin()]
    return {case.name: case for case in found}


def _path(path: str, _folder: Path) -> dict[str, Any]:
    return {"source": path}


def _golden() -> list[Case]:
    return [
        Case(
            f"golden/{config.parent.name}",
            json.loads(config.read_text())["model_type"],
            partial(_path, str(config.parent.relative_to(ROOT))),
            tuple(TARGETS),
        )
        for config in sorted((ROOT / "tests/golden").glob("*/config.json"))
    ]


def _pages() -> list[Case]:
    """Checkpoints under the names that the pages use, with tokenizers."""
    sys.path.insert(0, str(ROOT / "tests"))
    import docs_models

    def made(name: str, folder: Path) -> dict[str, Any]:
        docs_models.checkpoint(name, folder / name)
        return {"source": str(folder / name)}

    first = {golden: name for name, golden in reversed(docs_models.CHECKPOINTS.items())}
    return [Case(f"pages/{name}", "pages", partial(made, name)) for name in sorted(first.values())]


def _files() -> list[Case]:
    """``file.py:factory``: every function of a file that takes nothing and gives a module."""
    files = [*(ROOT / "tests/twelve_modules").glob("*.py"), *(ROOT / "tests/bad_modules").rglob("*.py")]
    found = []
    for file in sorted(files):
        for each in ast.parse(file.read_text()).body:
            if isinstance(each, ast.FunctionDef) and not each.args.args and each.name != "main":
                path = f"{file.relative_to(ROOT)}:{each.name}"
                found.append(Case(path.removeprefix("tests/"), file.parent.name, partial(_path, path)))
    return found


def _listed() -> list[Case]:
    """The lists of modules and example inputs that tests have."""
    from tests.graph.passes import test_recognised, test_rotary_by_hand
    from tests.modules import test_axes, test_plain_variants

    def axes(name: str, _folder: Path) -> dict[str, Any]:
        module, example = test_axes.made(name)
        return {"source": module, "example_inputs": example}

    def plain(name: str, _folder: Path) -> dict[str, Any]:
        module = test_plain_variants.CONVERTED[name]().eval()
        return {"source": module, "example_inputs": test_plain_variants.example(module)}

    def recognised(name: str, _folder: Path) -> dict[str, Any]:
        model = getattr(test_recognised, name)
        return {"source": model().eval(), **test_recognised.inputs(model)}

    def rotary(name: str, _folder: Path) -> dict[str, Any]:
        model = getattr(test_rotary_by_hand, name)
        return {"source": model().eval(), "example_inputs": {"input_ids": test_rotary_by_hand.IDS}}

    lists = {
        "test_axes": (list(test_axes.CASES), axes),
        "test_plain_variants": (list(test_plain_variants.CONVERTED), plain),
        "test_recognised": ([model.__name__ for model in test_recognised.RECOGNISED], recognised),
        "test_rotary_by_hand": ([model.__name__ for model in test_rotary_by_hand.RECOGNISED], rotary),
    }
    return [
        Case(f"{stem}/{name}", stem, partial(made, name)) for stem, (names, made) in lists.items() for name in names
    ]


def _builtin() -> list[Case]:
    """Every encoding in an encoder, a decoder and, of images, in a vision model, of one layer."""
    command = [sys.executable, "-m", "posexport", "list", "models", "--json"]
    rows = json.loads(subprocess.check_output(command, cwd=ROOT, text=True))
    kinds = ("encoder", "decoder", "vision")
    return [
        Case(
            f"built-in/{row['name']}",
            row["name"].partition("-")[0],
            partial(_path, row["name"]),
            options={"settings": {"layers": 1}},
        )
        for row in rows
        if row["name"].partition("-")[0] in kinds and not row["name"].startswith("encoder-decoder-")
    ]

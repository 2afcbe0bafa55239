"""PyTorch is changed in one folder, behind one lock, and is afterwards what it was."""

import ast
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import DimConstraints, ShapeEnv
from torch.nn.modules import transformer

import posexport
from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.assertions import with_assertions_held
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.shape_solver import with_unsolved_sizes
from posexport.sources.torch_fixes.size_uses import recording_size_uses

ROOT = Path(__file__).parents[3] / "posexport"
LIBRARIES = {"torch", "transformers", "onnxscript", "onnx_ir", "onnx", "onnxruntime", "numpy"}
#: settings of the process, by the functions that change them
SETTERS = {"set_default_dtype", "set_fastpath_enabled", "set_default_device", "use_deterministic_algorithms"}


def names_of_libraries(tree: ast.AST) -> set[str]:
    """The names that a file imports from libraries."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names if a.name.split(".")[0] in LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def changes(path: Path) -> Iterator[int]:
    """The lines that assign to an attribute of a library, or call one of its `SETTERS`."""
    tree = ast.parse(path.read_text())
    libraries = names_of_libraries(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "patched"):
            targets = [ast.Attribute(node.args[0], "", ast.Store())]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SETTERS:
            yield node.lineno
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in libraries:
                yield node.lineno


def test_libraries_are_changed_in_one_folder() -> None:
    files = [*ROOT.rglob("*.py"), *(ROOT / "models").glob("*.py")]
    found = {path.relative_to(ROOT): list(changes(path)) for path in files}
    inside = {path for path, lines in found.items() if lines and path.parts[:2] == ("sources", "torch_fixes")}
    assert {path.stem for path in inside} == {
        *("attention_flags", "causal_mask", "default_dtype", "fast_path", "floor_division", "helper_lines"),
        *("constant_ranges", "packed_rows", "refined_ranges", "rules_by_operator", "shape_solver", "size_keys"),
        *("assertions", "exact_constants", "missing_operators", "program_checks", "size_uses", "torchlib_once"),
    }
    assert not {str(path): lines for path, lines in found.items() if lines and path not in inside}


def test_every_file_names_an_issue_or_reason_and_a_version() -> None:
    for path in (ROOT / "sources" / "torch_fixes").glob("*.py"):
        if path.stem not in ("__init__", "patch", "as_exported"):
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert "Issue" in doc or "Reason" in doc, path
            assert "Seen in 2." in doc.replace("\n", " "), path


def state() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.backends.mha.get_fastpath_enabled(),
        F.scaled_dot_product_attention,
        transformer._detect_is_causal_mask,
        torch.SymBool.__bool__,
        torch.SymInt.__int__,
        ShapeEnv._set_replacement,
        DimConstraints.solve,
        DimConstraints.prettify_results,
    )


@pytest.mark.parametrize(
    "block",
    [
        *(as_exported, without_exporter_output, with_unsolved_sizes, recording_size_uses, with_assertions_held),
        lambda: computing_in(torch.float64),
    ],
)
def test_a_change_holds_the_lock_and_is_undone_by_an_error(block: Callable[[], AbstractContextManager[Any]]) -> None:
    before, free = state(), []

    def other() -> None:
        free.append(ONE_AT_A_TIME.acquire(blocking=False))
        if free[-1]:
            ONE_AT_A_TIME.release()

    def asked() -> bool:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return free[-1]

    def failing() -> None:
        with block():
            assert not asked()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert asked()
    assert state() == before


class Encoder(nn.Module):
    """PyTorch's layers, and an ALiBi bias in a submodule."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embed, self.bias = nn.Embedding(50, 12), Slopes(heads)
        self.layer = nn.TransformerEncoderLayer(12, heads, 20, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        bias = self.bias(ids.shape[1]).repeat(ids.shape[0], 1, 1)
        states: Tensor = self.layer(self.embed(ids), src_mask=bias)
        return states


class Slopes(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = nn.Buffer(torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]))

    def forward(self, length: int) -> Tensor:
        at = torch.arange(length)
        return -self.slopes[:, None, None] * (at[None] - at[:, None]).abs()


@pytest.mark.all
def test_threads_that_convert_at_once(tmp_path: Path) -> None:
    """Conversion, verification, the drop-in call, each in a thread: all are right, and nothing is left."""
    before, results = state(), {}
    modules = {heads: Encoder(heads).eval() for heads in (2, 4)}
    example = {"ids": torch.arange(14).reshape(2, 7)}

    def convert(heads: int) -> None:
        out = tmp_path / f"b{heads}"
        results[heads] = posexport.convert(modules[heads], out, example_inputs=example, lengths=[5]).good
        report = posexport.verify(out, modules[heads], example_inputs=example, lengths=[7])
        results[-heads] = report.passed

    def drop_in() -> None:
        axes = {"ids": {0: "batch", 1: "length"}}
        done = posexport.torch_onnx_export(
            modules[2], (example["ids"],), tmp_path / "m.onnx", input_names=["ids"], dynamic_axes=axes, lengths=[5]
        )
        results["drop-in"] = done.report is not None and done.report.passed

    threads = [threading.Thread(target=convert, args=(heads,)) for heads in modules]
    threads.append(threading.Thread(target=drop_in))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys([*modules, *(-heads for heads in modules), "drop-in"], True)
    assert state() == before

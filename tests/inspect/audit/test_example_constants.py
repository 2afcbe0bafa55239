"""Masks and positions of the example's length: repaired, with the module's outputs at other lengths; or not written."""

import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from posexport.cli import group
from posexport.inspect.audit.fix import Repaired, fix
from posexport.inspect.audit.repairs import example_constant
from tests.inspect.audit.graphs import saved
from tests.tolerances import agree

#: sizes that cannot be confused; the table is longer than the example
ROWS, TOKENS, HIDDEN, LIMIT, VOCABULARY = 2, 17, 12, 41, 50


class Layer(nn.Module):
    """One attention; subclasses forget that the length is a number when it is traced."""

    position_ids: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.types = (nn.Embedding(n, HIDDEN) for n in (VOCABULARY, LIMIT, 3))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.register_buffer("position_ids", torch.arange(LIMIT)[None])
        self.register_buffer("seen", torch.ones(LIMIT, LIMIT, dtype=torch.bool).tril()[None])

    def forward(self, ids: Tensor) -> Tensor:
        length = int(ids.shape[1])
        q, k, v = self.qkv(self.embedded(ids, length)).chunk(3, -1)
        attended: Tensor = self.masked(q @ k.transpose(-1, -2), ids, length).softmax(-1) @ v
        return attended

    def embedded(self, ids: Tensor, length: int) -> Tensor:
        words: Tensor = self.words(ids)
        return words

    def masked(self, scores: Tensor, ids: Tensor, length: int) -> Tensor:
        return scores


class Upper(Layer):
    def masked(self, scores: Tensor, ids: Tensor, length: int) -> Tensor:
        return scores.masked_fill(torch.triu(torch.ones(length, length, dtype=torch.bool), 1), -1e9)


class WithPadding(Layer):
    def masked(self, scores: Tensor, ids: Tensor, length: int) -> Tensor:
        seen = torch.ones(length, length, dtype=torch.bool).tril() & (ids != 0)[:, None]
        return scores.masked_fill(~seen, -1e9)


class CutBuffer(Layer):
    def masked(self, scores: Tensor, ids: Tensor, length: int) -> Tensor:
        return torch.where(self.seen[:, :length, :length], scores, torch.tensor(-1e9))


class Infinite(Layer):
    def masked(self, scores: Tensor, ids: Tensor, length: int) -> Tensor:
        return scores + torch.full((length, length), float("-inf")).triu(1)


class Positions(Upper):
    def embedded(self, ids: Tensor, length: int) -> Tensor:
        embedded: Tensor = self.words(ids) + self.places(self.position_ids[:, :length])
        return embedded


class FromTwo(Layer):
    def embedded(self, ids: Tensor, length: int) -> Tensor:
        types = torch.zeros(int(ids.shape[0]), length, dtype=torch.long)  # the batch stays too
        embedded: Tensor = self.types(types) + self.places(self.position_ids[:, :length] + 2) + self.words(ids)
        return embedded


class Pooled(Positions):
    """One vector a row: what one token is broadcast to does not show in the output's shape."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).mean(1)


def _exported(kind: type[Layer], folder: Path, *, folded: bool = True) -> tuple[Layer, Path]:
    torch.manual_seed(0)
    layer, path = kind().eval(), folder / "baked.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the numbers that stay
        torch.onnx.export(
            layer,
            (torch.randint(VOCABULARY, (ROWS, TOKENS)),),
            path,
            dynamo=False,
            opset_version=18,
            do_constant_folding=folded,
            input_names=["input_ids"],
            output_names=["y"],
            dynamic_axes={"input_ids": {0: "batch", 1: "tokens"}},
        )
    return layer, path


def _run(path: Path, ids: Tensor) -> Any:
    return ort.InferenceSession(path).run(None, {"input_ids": ids.numpy()})[0]


@pytest.mark.all(but=("WithPadding-folded", "Pooled-folded", "FromTwo-unfolded"))
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "unfolded"])
@pytest.mark.parametrize("kind", [Upper, WithPadding, CutBuffer, Infinite, Positions, FromTwo, Pooled])
def test_the_repaired_file_is_the_module_at_other_lengths(kind: type[Layer], folded: bool, tmp_path: Path) -> None:
    layer, before = _exported(kind, tmp_path, folded=folded)
    done = fix(before, ["PX101", "PX102", "PX103"], after := tmp_path / "after.onnx")
    assert not done.refused
    assert not [line for line in done.proof if line.startswith("fails")] or kind in (Positions, FromTwo)
    for rows, tokens in ((ROWS, TOKENS), (3, 23), (1, 5), (2, 1), (1, 39)):
        ids = torch.randint(VOCABULARY, (rows, tokens))
        agree(_run(after, ids), layer(ids).detach(), "model in float32", torch.float32)


def test_nothing_unread_stays(tmp_path: Path) -> None:
    """Constants are nodes in this file: neither they nor helpers of the repair are left."""
    _, before = _exported(Positions, tmp_path)
    fix(before, ["PX101", "PX103"], after := tmp_path / "after.onnx")
    graph = onnx.load(after).graph
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    written = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    assert written - read == set()
    # the file declared the example's length of its output
    assert graph.output[0].type.tensor_type.shape.dim[1].dim_param == "tokens"


def _refused(done: Repaired, folder: Path, names: list[str]) -> str:
    assert sorted(path.name for path in folder.iterdir()) == names
    *_, last = done.lines()
    assert last.startswith(f"{done.path} is not written: the repaired graph cannot be trusted: ")
    return done.refused


def test_a_repair_that_does_not_open_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where of booleans has no kernel on the CPU."""

    def where(g: Any, a: Any, b: Any) -> Any:
        truth = g.op("LessOrEqual", a, b)
        return g.Where(truth, truth, truth)

    monkeypatch.setattr(example_constant.Builder, "Greater", where, raising=False)
    _, before = _exported(Upper, tmp_path)
    reason = _refused(fix(before, ["PX103"], tmp_path / "after.onnx"), tmp_path, ["baked.onnx"])
    assert "does not open" in reason
    assert "implementation for Where" in reason
    done = CliRunner().invoke(group, ["audit", str(before), "--fix", "PX103", "-o", str(tmp_path / "after.onnx")])
    assert done.exit_code == 1
    assert "is not written" in done.output


def test_a_repair_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_constant.Builder, "Greater", lambda g, a, b: g.op("Less", a, b), raising=False)
    _, before = _exported(Upper, tmp_path)
    reason = _refused(fix(before, ["PX103"], tmp_path / "after.onnx"), tmp_path, ["baked.onnx"])
    assert "it has another 'y' at batch " in reason


def test_what_cannot_be_compared_is_not_written(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        baked (float[B, T, 20] x, uint8[B] z) => (float[B, N, 4, 5] y)
        <int64[4] shape = {-1, 17, 4, 5}>
        { y = Reshape (x, shape) }
    """
    done = fix(saved(text, tmp_path), ["PX101"], tmp_path / "after.onnx")
    reason = _refused(done, tmp_path, ["model.onnx"])
    assert reason == "it could not be compared with the file: the input z is of type UINT8"


@pytest.mark.parametrize(
    "numbers",
    ["0, 1, 2, 4", "3, 3, 2, 3"],
    ids=["no range", "not equal"],
)
def test_ids_without_a_rule_stay(numbers: str, tmp_path: Path) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        baked (float[B, T, 2] x) => (float[B, T, 2] y)
        <int64[1, 4] ids = {{{numbers}}}, float[5, 2] table = {{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0}}>
        {{ rows = Gather (table, ids)  y = Add (x, rows) }}
    """
    with pytest.raises(Exception, match="'rows' has 4 rows of its own"):
        fix(saved(text, tmp_path), ["PX101"], tmp_path / "after.onnx")


def test_positions_behind_a_cache_are_not_guessed(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        decoder (float[B, T, 2] x, float[B, P, 2] past_key) => (float[B, S, 2] present_key)
        <int64[1, 4] ids = {0, 1, 2, 3}, float[5, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0}>
        { rows = Gather (table, ids)  y = Add (x, rows)  present_key = Concat <axis = 1> (past_key, y) }
    """
    with pytest.raises(Exception, match="would have to count the tokens in the cache"):
        fix(saved(text, tmp_path), ["PX101"], tmp_path / "after.onnx")

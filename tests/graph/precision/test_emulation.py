"""Half precision emulated in float32: what is rounded, exactly how, and that proofs by it find what it breaks."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

import posexport
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.graph.precision.emulate import emulate, emulated
from posexport.proof.criterion import EPS, measure
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import Runner, whole
from posexport.run.providers import make_session
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import prepare
from tests.parity_models import prove
from tests.small import recipe
from tests.tolerances import agree

NUMPY = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
ONNX = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
FLOAT = TensorProto.FLOAT
HALVES = pytest.mark.parametrize("precision", ["fp16", "bf16"])


def rounded(array: NDArray[np.float32], precision: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(NUMPY[precision]).astype(np.float32)


def model(nodes, inputs, outputs, weights=(), functions=()) -> bytes:
    def infos(types):
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in types]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(weights))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))
    return made.SerializeToString()


def run(source: bytes, precision: str, feeds, *, everywhere: bool = False, level: str = "all"):
    loaded = ir.from_proto(onnx.ModelProto.FromString(source))
    emulate(loaded, BY_PRECISION[precision], everywhere=everywhere)
    session = make_session(ir.to_proto(loaded).SerializeToString(), level=level, threads=1)
    return session.run(None, feeds)


@HALVES
@pytest.mark.parametrize("level", ["all", "disable"])
def test_rounds_exactly(precision: str, level: str) -> None:
    """To the nearest, ties to even, subnormals, infinity, at all magnitudes that float32 has."""
    half = ONNX[precision]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("Add", ["h", "zero"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=FLOAT),
    ]
    zero = helper.make_tensor("zero", half, [], [0.0])
    source = model(nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], [zero])
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    ties = [2049, 2051, 65519, 65520, 65504, 2**-25, 2**-25 * 1.0001, 3 * 2**-25, 257, 259, 3.3961e38, np.inf, -np.inf]
    x = np.concatenate((bits[np.isfinite(bits)], np.array(ties, np.float32)))
    (y,) = run(source, precision, {"x": x}, level=level)
    assert np.array_equal(y, rounded(x, precision))
    assert not np.array_equal(y, x)


@HALVES
def test_every_operator_is_rounded_once(precision: str) -> None:
    """A product, then a sum: in one rounding they would have other values; float32 in the graph stays exact."""
    half = ONNX[precision]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("Mul", ["h", "h"], ["p"]),
        helper.make_node("Add", ["p", "h"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=FLOAT),
        helper.make_node("Mul", ["x", "x"], ["island"]),
        helper.make_node("Sin", ["island"], ["z"]),
    ]
    source = model(nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"]), ("z", FLOAT, ["n"])])
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    y, z = run(source, precision, {"x": x})
    h = rounded(x, precision)
    assert np.array_equal(y, rounded(rounded(h * h, precision) + h, precision))
    assert not np.array_equal(y, rounded(h * h + h, precision))
    agree(z, np.sin(x.astype(np.float64) ** 2), "attention", np.float32)


@HALVES
def test_subgraphs_functions_and_own_operators(precision: str) -> None:
    """Inside an If in a function, a Scan's body, and behind an operator of com.microsoft, whose type no schema says."""
    half = ONNX[precision]
    value = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Mul", ["a", "a"], ["t"])], "then", [], [value("t", half, None)])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [value("e", half, None)])
    function = helper.make_function(
        "local",
        "squared",
        ["a", "c"],
        ["o"],
        [helper.make_node("If", ["c"], ["o"], then_branch=then, else_branch=other)],
        [helper.make_opsetid("", 18)],
    )
    body = helper.make_graph(
        [helper.make_node("Add", ["carried", "each"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "body",
        [value("carried", half, []), value("each", half, [])],
        [value("next", half, []), value("out", half, [])],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("squared", ["h", "yes"], ["q"], domain="local"),
        helper.make_node("QuickGelu", ["q"], ["g"], domain="com.microsoft", alpha=1.0),
        helper.make_node("Scan", ["zero", "g"], ["last", "sums"], body=body, num_scan_inputs=1),
        helper.make_node("Cast", ["sums"], ["y"], to=FLOAT),
    ]
    weights = [helper.make_tensor("yes", TensorProto.BOOL, [], [True]), helper.make_tensor("zero", half, [], [0.0])]
    source = model(nodes, [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])], weights, [function])
    x = np.random.default_rng(2).standard_normal(300).astype(np.float32)
    (y,) = run(source, precision, {"x": x})
    h = rounded(x, precision)
    q = rounded(h * h, precision)
    g = rounded((q / (1 + np.exp(-q.astype(np.float64)))).astype(np.float32), precision)
    total, sums = np.float32(0), []
    for each in g:
        total = rounded(np.asarray(total + each), precision)
        sums.append(total)
    # QuickGelu's own exponential may round to the neighbour
    assert np.mean(y == np.array(sums)) > 0.5
    assert np.abs(y - np.array(sums)).max() <= 4 * EPS[precision] * np.abs(sums).max()
    assert np.array_equal(y, rounded(y, precision))


def test_half_inputs_and_outputs_become_float32_and_are_rounded() -> None:
    half = TensorProto.FLOAT16
    source = model([helper.make_node("Mul", ["x", "x"], ["y"])], [("x", half, ["n"])], [("y", half, ["n"])])
    x = np.array([1.0001, 300.0, 1 / 3], np.float32)
    (y,) = run(source, "fp16", {"x": x})
    assert y.dtype == np.float32
    assert np.array_equal(y, [1.0, np.inf, rounded(rounded(x, "fp16") ** 2, "fp16")[2]])


@HALVES
def test_everywhere_rounds_positions_too(precision: str) -> None:
    """Of a float32 graph even the cast of a position: 2049 is none of float16's, 257 none of bfloat16's."""
    nodes = [helper.make_node("Cast", ["ids"], ["p"], to=FLOAT), helper.make_node("Mul", ["p", "third"], ["y"])]
    third = helper.make_tensor("third", FLOAT, [], [1 / 3])
    source = model(nodes, [("ids", TensorProto.INT64, ["n"])], [("y", FLOAT, ["n"])], [third])
    ids = np.arange(4096)
    (y,) = run(source, precision, {"ids": ids}, everywhere=True)
    expected = rounded(rounded(ids.astype(np.float32), precision) * rounded(np.float32(1 / 3), precision), precision)
    assert np.array_equal(y, expected)
    first = int(np.flatnonzero(rounded(ids.astype(np.float32), precision) != ids)[0])
    assert first == {"fp16": 2049, "bf16": 257}[precision]


def test_nothing_to_round_and_unknown_operators_are_refused() -> None:
    source = model([helper.make_node("Neg", ["x"], ["y"])], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])])
    with pytest.raises(posexport.PosexportError, match="no values of float16"):
        run(source, "fp16", {})
    integers = [("x", TensorProto.INT64, ["n"])], [("y", TensorProto.INT64, ["n"])]
    source = model([helper.make_node("Neg", ["x"], ["y"])], *integers)
    with pytest.raises(posexport.PosexportError, match="no values of float32"):
        run(source, "fp16", {}, everywhere=True)


SETTINGS = ("layers=1", "hidden=60", "heads=5")


def sharp(name: str):
    """A source whose attention looks at few tokens, as trained models do: random weights average over all of them."""
    source = prepare(name, LoadOptions(settings=SETTINGS))
    with torch.no_grad():
        for path, weight in source.module.named_parameters():
            if path.endswith(("query.weight", "key.weight")):
                weight *= 2
    return source


@pytest.fixture(scope="module")
def rope(tmp_path_factory) -> tuple[object, Path]:
    from posexport.conversion.export.build import build

    source, path = sharp("encoder-rope"), tmp_path_factory.mktemp("rope") / "model.onnx"
    build(source, path, recipe())
    return source, path


@pytest.mark.all
def test_positions_in_half_are_found(rope) -> None:
    """What a naive conversion does to RoPE: right at lengths whose positions bfloat16 has, wrong beyond."""
    source, path = rope
    short = prove(source, path, emulate="bf16", lengths=[17], threads=1)
    long = prove(source, path, emulate="bf16", lengths=[700], threads=1)
    assert short.verdict == "checked at 17 tokens, not proven", short.describe()
    assert short.emulated
    assert not long.passed
    assert "length 700" in long.describe()


def test_float16_positions_collide_beyond_2048(rope) -> None:
    """One point, as the grid's longest: the naive graph's error there is many times that of PyTorch in float16."""
    source, path = rope
    errors = {}
    with emulated(path, BY_PRECISION["fp16"], everywhere=True) as copy:
        runner = Runner.of(source, copy, threads=1)
        for length in (64, 2500):
            feeds = draw(GridPoint(batch=1, length=length), source.inputs)
            y64 = whole(PrecisionCopy(source.module, torch.float64, outputs=1), source)(feeds)[0]
            errors[length] = measure(runner(feeds)[0], y64, source.outputs[0].axes, None).error
    assert errors[64] < 8 * EPS["fp16"]
    assert errors[2500] > 100 * EPS["fp16"]


def test_a_proof_needs_a_graph_of_its_precision(rope) -> None:
    source, path = rope
    with pytest.raises(posexport.PosexportError, match="no values of bfloat16"):
        prove(source, path, precision="bf16", lengths=[5])


@HALVES
@pytest.mark.parametrize("encoding", ["rope", "complex", "alibi", "t5", "sinusoidal"])
def test_positions_of_the_baseline_are_float32(encoding: str, precision: str) -> None:
    """PyTorch's error in half precision does not grow with the length: its angles are not rounded."""
    source = prepare(f"encoder-{encoding}", LoadOptions(settings=SETTINGS))
    errors = []
    for length in (32, 1500):
        feeds = draw(GridPoint(batch=1, length=length), source.inputs)
        y, y64 = (
            whole(PrecisionCopy(source.module, dtype, outputs=1), source)(feeds)[0]
            for dtype in (BY_PRECISION[precision].torch, torch.float64)
        )
        errors.append(measure(y, y64, source.outputs[0].axes, None).error)
    assert errors[1] <= 3 * max(errors[0], EPS[precision])


@pytest.mark.all
def test_verify_emulates_a_float32_bundle(tmp_path: Path) -> None:
    settings = {"layers": 1, "hidden": 60, "heads": 5}
    posexport.convert("encoder-alibi", str(tmp_path / "alibi"), settings=settings, lengths=[5], threads=1)
    with pytest.raises(posexport.PosexportError, match="needs --against SOURCE"):
        posexport.verify(tmp_path / "alibi", emulate="bf16")
    report = posexport.verify(
        tmp_path / "alibi", "encoder-alibi", emulate="bf16", lengths=[5, 33], settings=settings, threads=1
    )
    assert report.passed
    assert report.emulated
    assert report.precision == "bf16"
    assert "parity (bf16 in emulation, cpu)" in report.to_text()
    worst = max(point.error or 0 for point in report.points)
    assert EPS["bf16"] / 4 < worst < 16 * EPS["bf16"]
    with pytest.raises(posexport.PosexportError, match="emulate must be one of fp16, bf16"):
        posexport.verify(tmp_path / "alibi", "encoder-alibi", emulate="int8")


def test_runner_takes_the_copy_of_a_half_graph(tmp_path: Path) -> None:
    """Inputs of half type are declared float32 in the copy, which `Runner` feeds by its declared types."""
    half = TensorProto.BFLOAT16
    source = model([helper.make_node("Mul", ["x", "x"], ["y"])], [("x", half, ["n"])], [("y", half, ["n"])])
    (tmp_path / "model.onnx").write_bytes(source)
    with emulated(tmp_path / "model.onnx", BY_PRECISION["bf16"]) as copy:
        (y,) = Runner(copy, inputs=["x"], outputs=["y"])({"x": np.array([1.01], np.float64)})
        assert copy.parent != tmp_path
    assert not copy.exists()
    assert y.dtype == np.float32
    assert y[0] == rounded(rounded(np.float32([1.01]), "bf16") ** 2, "bf16")[0]

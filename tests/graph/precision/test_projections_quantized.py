"""Which linear projections are quantized and to which width, and what rounds what they multiply."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import posexport
from posexport.base.spec import InputSpec
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.apply import apply
from posexport.graph.precision.selection import check_quantized
from posexport.proof.quantized.as_stored import as_stored
from posexport.proof.quantized.module import AsStored
from posexport.proof.quantized.read import read
from posexport.run.bundle.manifest import Manifest
from posexport.run.providers import make_session, numeric_options
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.small import in_short
from tests.text_graphs import Inputs, graph, matrices, rows
from tests.tolerances import agree, allowed

HIDDEN, VOCAB, INNER = 70, 301, 301  # a layer is as wide as the vocabulary
IDS = Inputs([InputSpec(name="ids", dtype="int64", axes=["rows", "tokens"], role="tokens", size=VOCAB)])
INT4, INT8 = PrecisionOptions(precision="int4"), PrecisionOptions(precision="int8")
TARGETS = [Target("cpu", 23), Target("portable", 21)]
matrix = matrices(11)

TEXT = """HEAD g (int64[b, t] ids, float table, float up, float down, float head, float bias) => (float OUT) {
  x = Gather(table, ids)  a = MatMul(x, up)  r = Relu(a)  d = MatMul(r, down)  h = Add(x, d)
  LAST
}"""
OWN = "y = MatMul(h, head)  z = Add(y, bias)  capped = Tanh(z)  OUT = Mul(capped, TWO)"
TIED = "head_t = Transpose <perm = [1, 0]> (table)  OUT = MatMul(h, head_t)"


def of_width(model: ir.Model, bits: int) -> set[str]:
    """The weights of projections that are stored so."""
    endings = (f"_bits{bits}", f"_int{bits}")
    return {name.rsplit("_", 1)[0] for name in model.graph.initializers if name.endswith(endings)}


def model_of(last: str, output: str, width: int, opset: int, rows: int = VOCAB) -> ir.Model:
    text = TEXT.replace("LAST", last).replace("OUT", output).replace("TWO", "bias")
    weights = {"table": matrix(rows, HIDDEN), "up": matrix(HIDDEN, INNER), "down": matrix(INNER, HIDDEN)}
    if last is OWN:
        weights |= {"head": matrix(HIDDEN, width), "bias": matrix(width)}
    else:
        text = text.replace(", float head, float bias", "")
    return graph(text, opset, **weights)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("output", ["logits", "start_logits"])
@pytest.mark.parametrize("width", [29, VOCAB])
def test_what_gives_logits_has_8_bits_whatever_its_size(width: int, output: str, target: Target) -> None:
    model = model_of(OWN, output, width, target.opset)
    result = apply(model, IDS, target, INT4)
    assert of_width(model, 4) == {"up", "down"}
    assert of_width(model, 8) - {"table"} == {"head"}
    assert result.projections == {"int4": 2, "int8": 1}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_an_output_of_another_name_is_no_head(target: Target) -> None:
    """A user's module whose answer has no name: nothing says what it is."""
    model = model_of(OWN, "output", VOCAB, target.opset)
    assert apply(model, IDS, target, INT4).projections == {"int4": 3}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("output", ["logits", "output"])
def test_a_tied_head_is_stored_once_in_8_bits(output: str, target: Target) -> None:
    model = model_of(TIED, output, VOCAB, target.opset)
    assert apply(model, IDS, target, INT4).projections == {"int4": 2, "int8": 1}
    assert of_width(model, 8) == {"table"}
    assert of_width(model, 4) == {"up", "down"}


def test_a_head_tied_to_a_small_table_stays_in_float() -> None:
    model = model_of(TIED, "logits", 100, 23, rows=100)
    assert apply(model, IDS, TARGETS[0], INT4).projections == {"int4": 2, "float": 1}


#: heads by the definitions: a vocabulary as wide as a layer; one below 256; one of characters (CTC)
HEADS = [
    ("decoder-rope", None, {"vocab": 300, "feedforward": 300}),
    ("decoder-rope", None, {"vocab": 100, "tied": "false"}),
    ("audio-nope", "ctc", {"labels": 37}),
    ("encoder-decoder-t5", None, {"vocab": 300}),
]


@pytest.mark.all
@pytest.mark.parametrize(("name", "task", "settings"), in_short(HEADS, lambda _, task, __: task == "ctc"))
def test_heads_of_definitions(name: str, task: str, settings: dict, tmp_path: Path) -> None:
    settings = {"hidden": 60, "heads": 5, "layers": 1} | settings
    done = posexport.convert(name, tmp_path / "a", task=task, settings=settings, precision="int4", verify=False)
    assert done.manifest.projections["int8"] == 1
    assert done.manifest.projections["int4"] >= 4
    found = set().union(*(of_width(ir.load(path), 8) for path in (tmp_path / "a").glob("*.onnx")))
    assert [each for each in found if "token" not in each] == ["head.out.weight"]
    assert_same_values(tmp_path / "a", done.manifest)


def assert_same_values(bundle: Path, manifest: Manifest) -> None:
    """A client that sets what the manifest says has the values of `posexport.load`."""
    if manifest.parts:
        return
    assert manifest.session_options["session.qdq_matmulnbits_accuracy_level"] == "4"
    sizes = {"batch_size": 2, "sequence_length": 7, "total_sequence_length": 7, "past_sequence_length": 0}
    feeds = {}
    for spec in manifest.inputs:
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes]
        feeds[spec.name] = np.ones(shape, spec.dtype) if spec.dtype == "int64" else matrix(*shape)
    session = session_with(str(bundle / "model.onnx"), manifest.session_options)
    taken = {each.name for each in session.get_inputs()}
    got = session.run(["logits"], {name: array for name, array in feeds.items() if name in taken})[0]
    loaded = posexport.load(bundle).run(feeds)["logits"]
    agree(got, loaded, "rounded", np.float32)


def session_with(model: str | bytes, options: Mapping[str, str]) -> onnxruntime.InferenceSession:
    made = onnxruntime.SessionOptions()
    for name, value in options.items():
        made.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(model, made, providers=["CPUExecutionProvider"])


LEVEL = "session.qdq_matmulnbits_accuracy_level"
ROUNDED = 1e-3  # how far values move at least where activations are int8


@pytest.mark.parametrize(("body", "kind"), [
    ("z = MatMul(x, w)", "blocks"),
    ("y = MatMul(x, w)  a = Abs(y)  v = MatMul(a, w)  z = Add(y, v)", "exact"),  # ONNX Runtime leaves shared weights
], ids=["one", "shared"])  # fmt: skip
def test_activations_are_rounded_as_sessions_say(body: str, kind: str) -> None:
    """By plain ONNX Runtime, by posexport's sessions and by the proof's reader alike; at level 1 they are not."""
    model = graph(f"HEAD g (float[r, 70] x, float w) => (float z) {{ {body} }}", 21, w=matrix(70, 70) / 8)
    apply(model, rows(70), TARGETS[1], INT4)
    data, x = ir.to_proto(model).SerializeToString(), matrix(9, 70)
    assert numeric_options(data)[LEVEL] == "4"
    plain, exact = (session_with(data, given).run(None, {"x": x})[0] for given in ({}, {LEVEL: "1"}))
    np.testing.assert_array_equal(make_session(data).run(None, {"x": x})[0], plain)
    (use,), _ = read(data, [])
    assert {each.kind for each in use.roundings} == {kind}
    moved = np.abs(plain - exact).max() / np.abs(exact).max()
    assert moved > ROUNDED if kind == "blocks" else moved <= allowed("rounded", np.float32)


def test_only_graphs_of_dequantized_blocks_need_the_level() -> None:
    model = graph("HEAD g (float[r, 70] x, float w) => (float z) { z = MatMul(x, w) }", 23, w=matrix(70, 70))
    assert LEVEL not in numeric_options(ir.to_proto(model).SerializeToString())
    apply(model, rows(70), TARGETS[0], INT4)  # MatMulNBits, which says its level itself
    assert LEVEL not in numeric_options(ir.to_proto(model).SerializeToString())


NOTES = {"pkg.torch.onnx.name_scopes": "n" * 60, "pkg.torch.onnx.class_hierarchy": "c" * 140}


def noted(text: str, opset: int, **weights: np.ndarray) -> ir.Model:
    """Every node has as many notes as the tracer's."""
    model = graph(text, opset, **weights)
    for node in model.graph:
        node.metadata_props.update(NOTES)
    return model


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("options", [INT8, INT4], ids=lambda options: options.precision)
def test_what_would_not_shrink_stays(options: PrecisionOptions, target: Target) -> None:
    """Around the size at which it pays: never a larger file, and beyond it a smaller one."""
    made = {}
    for n in (16, 24, 32, 40, 48, 64, 96):
        model = noted("HEAD g (float[r, 16] x, float u, float w) => (float z) { y = MatMul(x, u)  z = MatMul(y, w) }",
                      target.opset, u=matrix(16, n), w=matrix(n, n))  # fmt: skip
        before = len(ir.to_proto(model).SerializeToString())
        result = apply(model, rows(16), target, options)
        made[n] = result.projections.get(options.precision, 0)
        assert sum(result.projections.values()) == 2
        assert result.larger == 2 - made[n]
        saved = before - len(ir.to_proto(model).SerializeToString())
        assert saved > 0 if made[n] else saved == 0, n
    assert made[16] == (0 if options is INT8 else 2)
    assert made[96] >= 1


def test_what_several_products_read_is_one_weight() -> None:
    """Its bytes are saved once, and every product takes nodes."""
    several = "  ".join(f"a{i} = Abs(y{i - 1})  y{i} = MatMul(a{i}, w)" for i in range(1, 7))
    inputs = Inputs([InputSpec(name="y0", dtype="float32", axes=["r", 44], role="values")])
    for count, quantized in ((1, True), (6, False)):
        text = "  ".join(several.split("  ")[: 2 * count])
        model = noted(f"HEAD g (float[r, 44] y0, float w) => (float y{count}) {{ {text} }}", 23, w=matrix(44, 44))
        assert (apply(model, inputs, TARGETS[0], INT8).projections.get("int8", 0) > 0) == quantized


@pytest.mark.all
def test_nothing_shrinks(tmp_path: Path) -> None:
    """The bundle is as large as in float32, and says why; it is no error, as any model of few weights is one."""
    settings = {"layers": 1, "hidden": 20, "heads": 5, "feedforward": 29, "vocab": 61}
    done = posexport.convert("encoder-absolute", tmp_path / "a", settings=settings, precision="int8", verify=False)
    assert set(done.manifest.projections) == {"float"}
    total = done.manifest.projections["float"]
    assert any(sentence.startswith(f"{total} of {total} linear projections stay in float") for sentence in done.remarks)
    posexport.convert("encoder-absolute", tmp_path / "b", settings=settings, verify=False)
    sizes = [(tmp_path / name / "model.onnx").stat().st_size for name in "ab"]
    assert abs(sizes[0] - sizes[1]) < 100  # its metadata names the precision


def test_check_quantized_accepts_what_is_left_for_its_size() -> None:
    model = noted("HEAD g (float[r, 16] x, float w) => (float z) { z = MatMul(x, w) }", 23, w=matrix(16, 16))
    result = apply(model, rows(16), TARGETS[0], INT8)
    assert result.larger == 1
    check_quantized(INT8, [result])


def test_onnx_runtime_multiplies_by_the_blocks_before_a_relu(tmp_path: Path) -> None:
    """By its own rule it would dequantize that weight in every call, and compute in float32 what the proof rounds."""
    model = model_of(OWN, "logits", VOCAB, 21)
    apply(model, IDS, Target("portable", 21), INT4)
    path, options = tmp_path / "optimised.onnx", onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in ir.load(path).graph]
    assert operators.count("MatMulNBits") == 3
    assert "DequantizeLinear" not in operators[operators.index("MatMulNBits") :]
    assert "Relu" not in operators


def test_onnx_runtime_multiplies_matrices_by_the_blocks_before_a_sum(tmp_path: Path) -> None:
    """Of [N, K] and a sum with [N, C] it would make Gemm, as behind experts; weights are read in every call then."""
    text = "HEAD g (float[r, 64] x, float up, float down) => (float z) { LINES }"
    lines = "a = MatMul(x, up)  b = MatMul(a, down)  z = Add(x, b)"
    model = graph(text.replace("LINES", lines), 21, up=matrix(64, 96), down=matrix(96, 64))
    model.graph.node(1).outputs[0].shape = ir.Shape(["r", 64])
    apply(model, rows(64), Target("portable", 21), INT4)
    path, options = tmp_path / "optimised.onnx", onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in ir.load(path).graph]
    assert operators.count("MatMulNBits") == 2
    assert not {"DequantizeLinear", "Gemm"} & {*operators}


@pytest.mark.all
def test_a_weight_that_is_stored_and_there_as_it_is_too(tmp_path: Path) -> None:
    """DeBERTa's positions go through the weights of the content, in float: each product has its own."""
    golden = Path(__file__).parents[2] / "golden" / "deberta-v2-formaskedlm"
    posexport.convert(golden, tmp_path / "b", precision="int4", verify=False)
    stored = as_stored(load_source(str(golden), LoadOptions()), tmp_path / "b" / "model.onnx").module
    assert isinstance(stored, AsStored)
    both = {
        name for (name, _), form in stored._forms.items() if [r.kind for r in form.roundings] == ["blocks", "float"]
    }
    assert {name.rsplit(".", 2)[-2] for name in both} == {"query", "key", "pos_query", "pos_key"}, "names of two"

"""A graph in half precision that rounds positions fails its proof, also where its outputs do not show it."""

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from posexport.base.spec import InputSpec
from posexport.base.targets.precisions import PrecisionOptions
from posexport.conversion.export.build import build
from posexport.conversion.export.half_inputs import with_precision
from posexport.proof.positions import NAME, roundings
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import prepare
from posexport.sources.source import Source
from tests.parity_models import prove
from tests.small import in_short, recipe

HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
SETTINGS = ("layers=1", "hidden=60", "heads=5")
#: what a right graph has of 16 bits around positions: several layers, tables, networks, loops, caches
RIGHT = ("decoder-cope", "encoder-rope-longrope", "encoder-transformer-xl", "encoder-tupe")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Source, bytes]]:
    """A built-in model in half precision, functions inlined; made once."""
    known: dict[tuple[str, str], tuple[Source, bytes]] = {}

    def get(name: str, precision: str) -> tuple[Source, bytes]:
        if (name, precision) not in known:
            options = PrecisionOptions(precision=precision)
            source = prepare(name, LoadOptions(settings=SETTINGS))
            path = tmp_path_factory.mktemp(name) / "model.onnx"
            build(source, path, recipe(precision=precision, inline=True))
            known[name, precision] = with_precision(source, options), path.read_bytes()
        return known[name, precision]

    return get


def rounded(model: bytes, reader: str, operand: int, precision: str, table: str = "") -> bytes:
    """``model`` with an operand of the first node ``reader`` cast to 16 bits and back.

    ``table``: the node is one whose first operand's name ends so.
    """
    graph = ir.from_proto(onnx.ModelProto.FromString(model))
    node = next(
        node
        for node in graph.graph
        if node.op_type == reader and (not table or str(node.inputs[0] and node.inputs[0].name).endswith(table))
    )
    value = node.inputs[operand]
    assert value is not None
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model)))
    kind = inferred.graph.initializers.get(value.name or "") or next(
        v for each in inferred.graph for v in each.outputs if v.name == value.name
    )
    assert kind.dtype in (ir.DataType.FLOAT, ir.DataType.INT64)
    down = ir.node("Cast", [value], {"to": int(HALVES[precision])}, name="down")
    up = ir.node("Cast", [down.outputs[0]], {"to": int(kind.dtype)}, name="up")
    graph.graph.insert_before(node, [down, up])
    node.replace_input_with(operand, up.outputs[0])
    return ir.to_proto(graph).SerializeToString()


@pytest.mark.all(but=("slopes", "log buckets of DeBERTa"))
@pytest.mark.parametrize(
    ("name", "reader", "operand", "table"),
    [
        pytest.param("encoder-rope", "Mul", 0, "_to_copy", id="position ids of a rotation"),
        pytest.param("encoder-rope", "Mul", 1, "_to_copy", id="frequencies of a rotation"),
        pytest.param("encoder-rope", "Cos", 0, "", id="angles of a rotation"),
        pytest.param("encoder-alibi", "Mul", 0, "neg", id="slopes"),
        pytest.param("encoder-alibi", "Mul", 1, "neg", id="distances"),
        pytest.param("encoder-sinusoidal", "Sin", 0, "", id="angles of sinusoids"),
        pytest.param("encoder-learned", "Gather", 1, "encoding.table", id="position ids of a learned table"),
        pytest.param("encoder-t5", "Gather", 1, "encoding.table", id="log buckets of T5"),
        pytest.param("encoder-deberta", "Gather", 1, "transpose_3", id="log buckets of DeBERTa"),
        pytest.param("encoder-fire", "Log", 0, "", id="operand of a logarithm"),
    ],
)
def test_a_rounding_of_positions_is_seen(graphs, name: str, reader: str, operand: int, table: str) -> None:
    precision = "fp16" if name == "encoder-rope" else "bf16"
    source, model = graphs(name, precision)
    assert roundings(model, source.inputs) == []
    (first, *_) = roundings(rounded(model, reader, operand, precision, table), source.inputs)
    assert HALVES[precision].name.lower() in first or "16 bits" in first


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(RIGHT, ("decoder-cope", "encoder-tupe").__contains__))
def test_right_graphs_have_none(graphs, name: str) -> None:
    source, model = graphs(name, "bf16")
    assert roundings(model, source.inputs) == []


def test_the_proof_fails_where_no_number_shows_it(graphs) -> None:
    source, model = graphs("encoder-alibi", "bf16")
    right = prove(source, model, precision="bf16", lengths=[17, 300], threads=1)
    wrong = prove(source, rounded(model, "Mul", 0, "bf16", "neg"), precision="bf16", lengths=[17, 300], threads=1)
    assert right.passed
    assert f"ok: {NAME} (length 300)" in right.to_text()
    assert all(point.verdict == "pass" for point in wrong.points)
    assert not wrong.passed
    assert "from positions" in wrong.describe()
    assert "rounded to 16 bits" in wrong.describe()


HEAD = '<ir_version: 10, opset_import: ["": 20]> '
IDS = [
    InputSpec(name="ids", dtype="int64", axes=["batch_size"], role="tokens", size=2),
    InputSpec(name="at", dtype="int64", axes=["batch_size"], role="positions"),
    InputSpec(name="mask", dtype="int64", axes=["batch_size"], role="mask"),
]
#: a bfloat16 is written as its bits: words are 1, step is 0.3
WORDS = "<bfloat16[2] words = {16256, 16256}, bfloat16 step = {16026}, float fine = {0.3}> "


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("p = Cast<to = 16> (at) a = Mul (p, step) c = Cos (a) w = Gather (words, ids) y = Mul (w, c)", True),
        ("p = Cast<to = 1> (at) a = Mul (p, fine) c = Cos (a) b = Cast<to = 16> (c) w = Gather (words, ids) "
         "y = Mul (w, b)", False),
        ("p = Cast<to = 1> (at) s = Cast<to = 1> (step) a = Mul (p, s) c = Cos (a) b = Cast<to = 16> (c) "
         "w = Gather (words, ids) y = Mul (w, b)", True),
        ("m = Cast<to = 16> (mask) w = Gather (words, ids) y = Mul (w, m)", False),
        ("m = Cast<to = 16> (mask) k = Constant<value_int = 0> () n = CumSum (m, k) w = Gather (words, ids) "
         "y = Mul (w, n)", True),
        ("n = Shape (ids) p = Cast<to = 16> (n) w = Gather (words, ids) y = Mul (w, p)", True),
        ("w = Gather (words, ids) h = Cast<to = 1> (w) y = Cast<to = 16> (h)", False),
        ("some = Less (at, ids) y = If (some) <then_branch = t () => (bfloat16[n] u) { p = Cast<to = 16> (at) "
         "u = Cos (p) }, else_branch = e () => (bfloat16[n] v) { v = Gather (words, ids) }>", True),
    ],
)  # fmt: skip
def test_rules(body: str, wrong: bool) -> None:
    """Numbers of positions, masks, sizes and tokens; one rounding is the last."""
    text = HEAD + "g (int64[n] ids, int64[n] at, int64[n] mask) => (bfloat16[n] y) " + WORDS + "{ " + body + " }"
    model = onnx.parser.parse_model(text)
    assert bool(roundings(model.SerializeToString(), IDS)) == wrong

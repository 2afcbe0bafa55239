"""Graph passes: the same values, by fewer or other operators, each weight stored once."""

import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from posexport.base.spec import BATCH, CAPACITY, ENCODER_SEQUENCE, PAST, SEQUENCE, TOTAL
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.target import Target
from posexport.conversion.export.save import fill_metadata, save
from posexport.conversion.export.trace import trace as traced
from posexport.errors import PosexportError
from posexport.graph.lowering import functions
from posexport.graph.passes.flat_tokens import flatten
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.pipeline import PASSES, run, why_left_out
from posexport.graph.queries import weight_bytes
from posexport.proof.locate.locate import locate
from posexport.proof.report.points import Point
from posexport.sources import builtin
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from tests.parity_models import SIZES
from tests.small import in_short, recipe
from tests.tolerances import agree

LLAMA = ("norm_kind=rms", "gated=True", "activation=silu", "attention_bias=False", "feedforward_bias=False", "eps=1e-6")
#: (model, settings, cache, target) -> what the passes do to two layers
CASES: dict[str, tuple[str, tuple[str, ...], str | None, Target, dict[str, int]]] = {
    "bert, cpu": (
        "encoder-absolute",
        (),
        None,
        Target("cpu", 24),
        {"flat-tokens": 17, "packed-heads": 2, "unpadding": 2},
    ),
    "bert, cpu, opset 18": (
        "encoder-absolute",
        (),
        None,
        Target("cpu", 18),
        {"gelu": 2, "flat-tokens": 17, "packed-heads": 2, "unpadding": 2},
    ),
    "bert, cuda": (
        "encoder-absolute",
        (),
        None,
        Target("cuda", 24),
        {"skip-norm": 4, "bias-gelu": 2, "packed-heads": 2, "kept-keys": 2},
    ),
    "deberta, cuda": (
        "encoder-deberta",
        (),
        None,
        Target("cuda", 24, dtype=BY_PRECISION["fp16"]),
        {"skip-norm": 5, "bias-gelu": 2, "known-tables": 4, "packed-heads": 2},
    ),
    "bert, portable": ("encoder-absolute", (), None, Target("portable", 18), {"gelu": 2}),
    "tanh, cpu": (
        "encoder-nope",
        ("activation=gelu_new",),
        None,
        Target("cpu", 18),
        {"gelu": 2, "flat-tokens": 17, "packed-heads": 2, "unpadding": 2},
    ),
    "gpt, cpu": ("decoder-absolute", (), "dynamic", Target("cpu", 24), {"flat-tokens": 17, "shared-bias": 2}),
    "gpt, cuda": (
        "decoder-absolute",
        (),
        "dynamic",
        Target("cuda", 24),
        {"skip-norm": 5, "bias-gelu": 2, "shared-bias": 2},
    ),
    "llama, cpu": ("decoder-nope", LLAMA, "dynamic", Target("cpu", 24), {"swish": 2, "rms-norm": 5, "shared-bias": 2}),
    "llama, cuda": (
        "decoder-nope",
        LLAMA,
        "dynamic",
        Target("cuda", 23),
        {"swish": 2, "rms-norm": 5, "skip-norm": 4, "shared-bias": 2},
    ),
    "llama, static": ("decoder-rope", (*LLAMA, "kv_heads=1"), "static", Target("cpu", 24), {"swish": 2, "rms-norm": 5}),
    # GroupQueryAttention has no kernel in float32 there
    "rope, static, cuda": (
        "decoder-rope",
        (),
        "static",
        Target("cuda", 24),
        {"skip-norm": 4, "bias-gelu": 2, "filled-cache": 2, "packed-heads": 2, "shared-bias": 2},
    ),
    "llama, portable": ("decoder-nope", LLAMA, "dynamic", Target("portable", 24), {"rms-norm": 5, "shared-bias": 2}),
    "transformer-xl, cpu": (
        "encoder-transformer-xl",
        (),
        None,
        Target("cpu", 18),
        {"gelu": 2, "flat-tokens": 17, "tabulated-projection": 2, "packed-heads": 2, "unpadding": 2},
    ),
}


@functools.cache
def _traced(name: str, settings: tuple[str, ...], cache: str | None, opset: int) -> tuple[Source, onnx.ModelProto]:
    source = made(name, settings, cache)
    return source, ir.to_proto(traced(source, opset))


def graph(name: str, settings: tuple[str, ...], cache: str | None, opset: int) -> tuple[Source, ir.Model]:
    """A source and its graph, traced once for all tests."""
    source, proto = _traced(name, settings, cache, opset)
    return source, ir.from_proto(proto)


def made(name: str, settings: Sequence[str], cache: str | None) -> Source:
    sizes = SIZES if name.endswith("absolute") else SIZES[1:]
    found = builtin.builtin_source(name, task=None, settings_given=(*sizes, "layers=2", *settings))
    return found if cache is None else with_kv_cache(found, cache, "at-write")  # type: ignore[arg-type]


def feeds(source: Source, batch: int, new: int, past: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    sizes = {BATCH: batch, SEQUENCE: new, PAST: past, TOTAL: past + new, CAPACITY: past + new + 2, ENCODER_SEQUENCE: 6}
    given = {}
    for spec in source.inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
        if spec.role == "mask":
            given[spec.name] = np.ones(shape, np.int64)
            given[spec.name][0, : min(2, new - 1)] = 0
        elif spec.role in ("tokens", "types"):
            given[spec.name] = draw.integers(0, spec.size or 2, shape)
        elif spec.role == "cache":
            given[spec.name] = draw.standard_normal(shape).astype(np.float32)
    return given


def outputs(model: ir.Model, given: dict[str, np.ndarray], *, optimized: bool = True) -> list[np.ndarray]:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(y) for y in session.run(None, given)]


def applied(model: ir.Model, target: Target, only: Sequence[str] | None = None) -> dict[str, int]:
    """Run the passes; how many nodes each changed."""
    return {name: result.nodes for name, result in run(model, Context(target), only=only).items()}


def reasons(target: Target) -> dict[str, str]:
    """Every pass that does not run for ``target`` -> why."""
    left_out = {each.name: why_left_out(each, target) for each in PASSES}
    return {name: reason for name, reason in left_out.items() if reason}


def types(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def parsed(body: str, opset: int = 24, inputs: str = "float[B, T, 6] x", outs: str = "float[B, T, 6] y") -> ir.Model:
    """A graph in ONNX's text format with its shapes inferred; weights are its initialisers."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outs}) {body}'
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))


def weights(**shapes: Sequence[int]) -> str:
    """Initialisers with numbers that differ, for `parsed`."""
    lines = []
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        seed = sum(map(ord, name))
        numbers = ", ".join(f"{x:.6f}" for x in np.random.default_rng(seed).standard_normal(size))
        lines.append(f"float[{', '.join(map(str, shape))}] {name} = {{{numbers}}}")
    return f"<{', '.join(lines)}>" if lines else ""


#: of which each pass is, in the graphs that the next test reads too
WHOLE_IN_SHORT = ("bert, cpu", "bert, cuda", "gpt, cpu", "llama, cpu", "llama, static", "transformer-xl, cpu")


@pytest.mark.all(but=("transformer-xl", "llama, static"))
@pytest.mark.parametrize("case", in_short(CASES, WHOLE_IN_SHORT.__contains__))
def test_same_numbers_of_a_whole_model(case: str) -> None:
    name, settings, cache, target, wanted = CASES[case]
    source, plain = graph(name, settings, cache, target.opset)
    _, rewritten = graph(name, settings, cache, target.opset)
    before = len(plain.graph)
    done = applied(rewritten, target)
    assert {name: count for name, count in done.items() if count} == wanted
    assert len(rewritten.graph) < before or target.name == "portable"
    named = [node.name for node in rewritten.graph]
    assert all(named)
    assert len(set(named)) == len(named)
    for model in (plain, rewritten):
        functions.attach(model, target)
    for sizes in ((2, 7, 4), (1, 1, 5), (3, 2, 0)):
        given = feeds(source, *sizes)
        right = outputs(plain, given, optimized=False)
        if done["unpadding"]:  # hidden states of padding are zeros
            right = [value * given["attention_mask"][..., None] for value in right]
        for optimized in (True, False):
            for got, want in zip(outputs(rewritten, given, optimized=optimized), right, strict=True):
                agree(got, want, "encoding", np.float32)
    assert [v.name for v in rewritten.graph.outputs] == [spec.name for spec in source.outputs]


@pytest.mark.parametrize("name", ["bert, cpu", "gpt, cpu", "llama, cpu", "bert, cuda", "llama, static"])
def test_values_of_a_rewritten_graph_have_the_shapes_that_it_says(name: str) -> None:
    model_name, settings, cache, target, _ = CASES[name]
    source, model = graph(model_name, settings, cache, target.opset)
    run(model, Context(target))
    functions.attach(model, target)
    said = {
        value.name: [size if isinstance(size, int) else None for size in value.shape]
        for node in model.graph
        for value in node.outputs
        if value.name and value.shape is not None and value.dtype == ir.DataType.FLOAT and value.uses()
    }
    for node in list(model.graph):
        for value in node.outputs:
            if value.name in said and not value.is_graph_output():
                model.graph.outputs.append(value)
    got = outputs(model, feeds(source, 2, 7, 4), optimized=False)
    looked_at = 0
    for value, array in zip(model.graph.outputs, got, strict=True):
        if value.name in said:
            looked_at += 1
            sizes = said[value.name]
            assert len(sizes) == array.ndim
            assert all(size in (None, found) for size, found in zip(sizes, array.shape, strict=True)), value.name
    assert looked_at > 20


def test_onnx_runtime_leaves_the_rows_alone() -> None:
    """The reason for them: of three axes it makes sums and normalisations an operator whose CPU kernel is slower."""
    found = []
    for wanted in ([], None):
        _, model = graph("encoder-absolute", (), None, 24)
        run(model, Context(Target("cpu", 24)), only=wanted)
        functions.attach(model)
        found.append(_as_run(model))
    plain, rows = found
    assert plain["SkipLayerNormalization"] == 4
    assert rows["SkipLayerNormalization"] == 0
    assert rows["Gemm"] == 12


def _as_run(model: ir.Model) -> Counter[str]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.all
def test_onnx_runtime_knows_the_order_that_portable_graphs_get() -> None:
    found = []
    for wanted in ([], None):
        _, model = graph("encoder-absolute", (), None, 18)
        run(model, Context(Target("portable", 18)), only=wanted)
        assert "com.microsoft" not in model.opset_imports
        functions.attach(model)
        found.append(_as_run(model))
    assert [kinds["Erf"] for kinds in found] == [2, 0]
    assert found[1]["BiasGelu"] == 2


def test_what_is_left_out_says_why() -> None:
    portable, cpu, cuda = (reasons(Target(name, 18)) for name in ("portable", "cpu", "cuda"))
    assert "ONNX Runtime's own operator" in portable["skip-norm"]
    assert "2 to 5 times" in cpu["skip-norm"]
    assert "opset 23" in cpu["rms-norm"]
    assert "skip-norm" not in cuda
    assert "one kernel" in cuda["flat-tokens"]
    assert set(cpu) == {*("skip-norm", "rms-norm", "packed-projections", "filled-cache", "known-tables", "kept-keys")}
    assert "opset 24 has Gelu" in reasons(Target("cpu", 24))["gelu"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["bogus"], ["unknown graph pass 'bogus'", "flat-tokens"]),
        (["skip-norm"], ["skip-norm does not apply", "leave it out"]),
    ],
)
def test_bad_names(wanted: list[str], words: list[str]) -> None:
    model = parsed("{ y = Relu(x) }")
    with pytest.raises(PosexportError) as caught:
        run(model, Context(Target("portable", 24)), only=wanted)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


X = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)


def both(model: Callable[[], ir.Model], target: Target, wanted: list[str]) -> tuple[dict[str, int], ir.Model]:
    plain, rewritten = model(), model()
    done = applied(rewritten, target, wanted)
    for want, got in zip(outputs(plain, {"x": X}), outputs(rewritten, {"x": X}), strict=True):
        agree(got, want, "encoding", np.float32)
    return done, rewritten


def test_the_parts_of_a_split_weight_are_weights() -> None:
    """Parts of different sizes, along either axis, read as they are or transposed."""
    lists = ", int64[3] rows = {4, 6, 5}, int64[2] columns = {7, 6}>"
    body = (
        weights(w=(15, 6), v=(6, 13)).removesuffix(">") + lists + "{ a, b, c = Split <axis = 0> (w, rows) "
        "bt = Transpose <perm = [1, 0]> (b) ct = Transpose <perm = [1, 0]> (c) "
        "d, e = Split <axis = 1> (v, columns) xb = MatMul (x, bt) xc = MatMul (x, ct) xe = MatMul (x, e) "
        "sums = ReduceSum <keepdims = 1> (xc) sum = Add (xb, xe) y = Add (sum, sums) }"
    )
    done, rewritten = both(lambda: parsed(body), Target("cpu", 24), ["split-weights"])
    assert done == {"split-weights": 2}
    assert "Split" not in types(rewritten)


def test_packing_stores_each_weight_once(tmp_path: Any) -> None:
    # both layers have the same weights
    source, plain = graph("encoder-absolute", ("layer_groups=1",), None, 18)
    _, packed = graph("encoder-absolute", ("layer_groups=1",), None, 18)
    assert applied(packed, Target("portable", 18), ["packed-projections"]) == {"packed-projections": 2}
    joined = [v for v in packed.graph.initializers.values() if (v.name or "").endswith("packed")]
    assert len(joined) == 2  # weights and biases of both layers
    assert weight_bytes(packed) <= weight_bytes(plain) + 64
    for model in (plain, packed):
        functions.attach(model)
        fill_metadata(model, source, {}, recipe())
    save(packed, tmp_path / "model.onnx")
    given = feeds(source, 2, 7, 0)
    again = ir.load(tmp_path / "model.onnx")
    for got, want in zip(outputs(again, given), outputs(plain, given), strict=True):
        agree(got, want, "encoding", np.float32)


def test_packed_weights_are_made_when_they_are_read() -> None:
    _, model = graph("decoder-nope", LLAMA, "dynamic", 24)
    parts = {v.name: v.const_value for v in model.graph.initializers.values()}
    done = applied(model, Target("cpu", 24), ["packed-projections"])
    assert done == {"packed-projections": 4}
    value = next(v for v in model.graph.initializers.values() if (v.name or "").endswith("_packed"))
    tensor = value.const_value
    assert tensor is not None
    assert tensor.numpy() is not tensor.numpy()  # nothing is kept
    first = parts[(value.name or "").removesuffix("_packed")]
    assert first is not None
    np.testing.assert_array_equal(tensor.numpy()[:, : first.shape[1]], first.numpy())


@pytest.mark.parametrize(
    ("body", "groups"),
    [
        ("{ a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b) }", 1),
        # one with a bias and one without
        ("{ a = MatMul(x, w) c = Add(a, s) b = MatMul(x, v) y = Add(c, b) }", 1),
        # another input, a weight that something else reads, a single map
        ("{ z = Relu(x) a = MatMul(x, w) b = MatMul(z, v) y = Add(a, b) }", 0),
        ("{ a = MatMul(x, w) b = MatMul(x, v) c = MatMul(b, w) d = Add(a, b) y = Add(d, c) }", 0),
        ("{ y = MatMul(x, w) }", 0),
    ],
)
def test_what_is_packed(body: str, groups: int) -> None:
    def model() -> ir.Model:
        used = {name: shape for name, shape in {"w": (6, 6), "v": (6, 6), "s": (6,)}.items() if f", {name})" in body}
        return parsed(weights(**used) + body)

    done, rewritten = both(model, Target("portable", 24), ["packed-projections"])
    assert done == {"packed-projections": groups}
    assert types(rewritten)["Split"] == groups


@pytest.mark.parametrize(
    ("body", "gemms", "reshapes"),
    [
        # in and out of a map with a bias
        ("{ a = MatMul(x, w) y = Add(a, s) }", 1, 2),
        # what leaves is read with three axes twice, and once by a reshape
        ("{ a = MatMul(x, w) b = Add(s, a) c = ReduceSum<keepdims = 1>(b) d = Transpose<perm = [1, 0, 2]>(b) "
         "e = Transpose<perm = [1, 0, 2]>(d) f = Add(e, c) g = Add(f, b) y = Relu(g) }", 1, 4),
        # neither a bias nor a normalisation of a sum: nothing to gain
        ("{ a = MatMul(x, w) b = Sigmoid(a) y = Add(b, x) }", 0, 0),
        # a bias for every token is no bias of a Gemm
        ("{ a = MatMul(x, w) b = Add(a, x) n = LayerNormalization<axis = 2>(b, s, s) y = Add(n, x) }", 0, 2),
        # the sum of two values is read twice
        ("{ a = MatMul(x, w) b = Add(a, s) c = Add(b, a) y = Add(c, x) }", 0, 0),
    ],
)  # fmt: skip
def test_rows(body: str, gemms: int, reshapes: int) -> None:
    def model() -> ir.Model:
        used = {name: shape for name, shape in {"w": (6, 6), "s": (6,)}.items() if f"{name})" in body or "(s" in body}
        return parsed(weights(**used) + body)

    done, rewritten = both(model, Target("portable", 24), ["flat-tokens"])
    assert types(rewritten)["Gemm"] == gemms
    assert types(rewritten)["Reshape"] == reshapes
    assert bool(done["flat-tokens"]) == bool(reshapes)


def test_regions_that_a_later_pass_flattens_read_the_rows_that_are_there() -> None:
    """Drop-padding flattens those too that flat-tokens left: ONNX allows a name once."""
    model = parsed(
        weights(w=(6, 6), s=(6,), t=(6, 6))
        + "{ a = MatMul(x, w) b = Add(a, s) c = Softmax<axis = 1>(b) d = MatMul(x, t) e = Softmax<axis = 1>(d) "
        "y = Add(c, e) }"
    )
    assert applied(model, Target("cpu", 24), ["flat-tokens"]) == {"flat-tokens": 1}
    assert types(model)["Reshape"] == 2
    flatten(model.graph)
    assert types(model)["Reshape"] == 3, "the other region is flattened, of rows that were there"
    assert len({value.name for node in model.graph for value in node.outputs}) == len(model.graph)


@pytest.mark.parametrize(("zero_is_zero", "reshapes"), [(0, 3), (1, 2)])
def test_a_reshape_that_keeps_sizes_reads_all_axes(zero_is_zero: int, reshapes: int) -> None:
    target = "int64[2] z = {-1, 18}" if zero_is_zero else "int64[2] z = {0, -1}"

    def model() -> ir.Model:
        given = weights(w=(6, 6), s=(6,)).replace(">", f", {target}>")
        return parsed(
            f"{given} {{ a = MatMul(x, w) b = Add(a, s) y = Reshape<allowzero = {zero_is_zero}>(b, z) }}",
            inputs="float[B, 3, 6] x",
            outs="float[B, N] y",
        )

    done, rewritten = both(model, Target("portable", 24), ["flat-tokens"])
    assert done == {"flat-tokens": 1}
    assert types(rewritten)["Reshape"] == reshapes


def test_rows_do_not_follow_what_mixes_tokens() -> None:
    def model() -> ir.Model:
        return parsed(
            weights(w=(6, 6), s=(6,), t=(1, 3, 6))
            + "{ a = MatMul(x, w) b = Add(a, s) c = Softmax<axis = 1>(b) d = Add(c, t) "
            "f = MatMul(d, w) y = Add(f, s) }",
            inputs="float[B, 3, 6] x",
            outs="float[B, 3, 6] y",
        )

    done, rewritten = both(model, Target("portable", 24), ["flat-tokens"])
    assert done == {"flat-tokens": 2}
    assert types(rewritten)["Reshape"] == 4
    softmax = next(node for node in rewritten.graph if node.op_type == "Softmax")
    assert len(softmax.inputs[0].shape or ()) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
def test_skip_norm(bias: bool, shared: bool, swapped: bool, norm: str) -> None:
    mapped = "a = MatMul(x, w) " + ("m = Add(a, s)" if bias else "m = Identity(a)")
    pair = "m, x" if swapped else "x, m"
    given = "b, g, h" if norm == "LayerNormalization" else "b, g"
    last = "y = Add(n, b)" if shared else "y = Relu(n)"
    body = f"{{ {mapped} b = Add({pair}) n = {norm}<axis = -1, epsilon = 0.001>({given}) {last} }}"
    sizes: dict[str, Sequence[int]] = {"w": (6, 6), "g": (6,)}
    sizes |= {"s": (6,)} if bias else {}
    sizes |= {"h": (6,)} if norm == "LayerNormalization" else {}
    done, rewritten = both(lambda: parsed(weights(**sizes) + body), Target("cuda", 24), ["skip-norm"])
    assert done == {"skip-norm": 1}
    kinds = types(rewritten)
    assert kinds[norm] == 0
    assert kinds["Add"] == int(shared)
    fused = next(node for node in rewritten.graph if node.domain == "com.microsoft")
    assert len(fused.outputs) == (4 if shared else 1)


@pytest.mark.parametrize(
    "body",
    [
        # a sum that is repeated along the batch, a normalisation of something else, over another axis
        "{ b = Add(x, t) y = LayerNormalization<axis = -1>(b, g, g) }",
        "{ b = Mul(x, x) y = LayerNormalization<axis = -1>(b, g, g) }",
        "{ b = Add(x, x) c = LayerNormalization<axis = 1>(b, u, u) y = Add(c, x) }",
    ],
)
def test_sums_that_are_no_skips(body: str) -> None:
    sizes = {name: shape for name, shape in {"t": (3, 6), "g": (6,), "u": (3, 6)}.items() if f"{name})" in body}
    model = lambda: parsed(weights(**sizes) + body, inputs="float[B, 3, 6] x", outs="float[B, 3, 6] y")  # noqa: E731
    done, _ = both(model, Target("cuda", 24), ["skip-norm"])
    assert done == {"skip-norm": 0}


def test_formulas_with_other_constants_stay() -> None:
    gelu = (
        "<float r = {1.5}, float one = {1.0}, float half = {0.5}> "
        "{ d = Div(x, r) e = Erf(d) a = Add(e, one) h = Mul(half, a) y = Mul(x, h) }"
    )
    model = parsed(gelu, 18)
    assert applied(model, Target("cpu", 18), ["gelu"]) == {"gelu": 0}
    rms = (
        "<float[6] w = {1,2,3,4,5,6}, float p = {POWER}, int64[1] ax = {AXIS}, float eps = {0.001}> "
        "{ q = Pow(x, p) m = ReduceMean<keepdims = 1>(q, ax) e = Add(m, eps) r = Sqrt(e) d = Div(x, r) y = Mul(d, w) }"
    )
    found = []
    for power, axis in (("2.0", "-1"), ("2.0", "2"), ("3.0", "-1"), ("2.0", "1")):
        model = parsed(rms.replace("POWER", power).replace("AXIS", axis), 23)
        found.append(applied(model, Target("portable", 23), ["rms-norm"])["rms-norm"])
    assert found == [1, 1, 0, 0]


def test_a_wrong_weight_is_located_among_rows() -> None:
    source, model = graph("encoder-absolute", (), None, 24)
    run(model, Context(Target("cpu", 24)))
    functions.attach(model)
    changed = next(v for n, v in model.graph.initializers.items() if n == "encoder.groups.1.attention.output.bias")
    assert changed.const_value is not None
    changed.const_value = ir.tensor(changed.const_value.numpy() + np.float32(0.5), name=changed.name)
    point = Point(
        batch=3,
        length=17,
        padding="ragged",
        provider="cpu",
        precision="fp32",
        output="last_hidden_state",
        error=1.0,
        baseline_error=0.0,
        worst_baseline_error=0.0,
        tolerance=2e-6,
        verdict="fail",
    )
    with torch.no_grad():
        sentence = locate(source, ir.to_proto(model).SerializeToString(), point, threads=1)
    assert "starts in layer 1, attention: what leaves encoder.groups.1.attention.output" in sentence


@pytest.mark.parametrize(
    ("body", "name", "reason"),
    [
        ("{ b = Add(x, x) y = LayerNormalization<axis = 1>(b, u, u) }", "skip-norm", "over other axes"),
        ("{ b = Mul(x, x) y = LayerNormalization<axis = -1>(b, g, g) }", "skip-norm", "something else than a sum"),
        ("{ b = Add(x, t) y = LayerNormalization<axis = -1>(b, g, g) }", "skip-norm", "not both [batch"),
        ("{ a = MatMul(x, w) b = MatMul(x, v) c = MatMul(b, w) d = Add(a, b) y = Add(d, c) }",
         "packed-projections", "stored twice"),
        ("{ a = MatMul(x, w) b = Sigmoid(a) y = Add(b, x) }", "flat-tokens", "neither a projection with a bias"),
        ("{ d = Div(x, r) e = Erf(d) a = Add(e, o) h = Mul(r, a) y = Mul(x, h) }", "gelu", "its constants"),
    ],
)  # fmt: skip
def test_a_place_that_is_left_says_why(body: str, name: str, reason: str) -> None:
    shapes = {"w": (6, 6), "v": (6, 6), "t": (3, 6), "u": (3, 6), "g": (6,), "r": (1,), "o": (1,)}
    used = {each: shape for each, shape in shapes.items() if f", {each})" in body or f"({each}, " in body}
    model = parsed(weights(**used) + body, 18, inputs="float[B, 3, 6] x", outs="float[B, 3, 6] y")
    result = run(model, Context(Target("cuda", 18)), only=[name])[name]
    assert result.nodes == 0
    assert [reason in each for each in result.rejected] == [True]


def test_results_are_of_every_pass_in_their_order() -> None:
    _, model = graph("encoder-absolute", (), None, 18)
    results = run(model, Context(Target("cpu", 18), "formula"))
    listed = [each.name for each in PASSES if each.phase in ("optimise", "padding") and each.is_listed_idle]
    assert list(results) == listed
    assert "formula was asked for" in results["in-place-cache"].rejected[0]
    assert "2 to 5 times" in results["skip-norm"].rejected[0]
    assert not results["flat-tokens"].rejected


def test_every_pass_is_tried_here() -> None:
    """Of the cases above; packing, which no target has by default; and what other files have.

    The cache is tried in test_packed_heads.py, what only users' modules need in test_recognised_positions.py,
    operators that are as accurate as PyTorch's in test_accuracy.py, logits in test_last_logits.py.
    """
    tried = {name for *_, wanted in CASES.values() for name in wanted} | {"packed-projections", "in-place-cache"}
    tried |= {
        "separate-projections",
        "split-weights",
        "group-norm",
        "log-of-sigmoid",
        "softplus",
        "l2-norm",
        "routed-experts",
        "fixed-shape-steps",
        "last-logits",
        "wide-dft",
    }
    assert tried == {each.name for each in PASSES if each.phase in ("optimise", "padding")}

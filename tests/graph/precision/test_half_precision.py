"""Half precision: what stays float32, what it costs in accuracy, and where there are no kernels."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import inliner, shape_inference

import posexport
from posexport.base.spec import InputSpec, OutputSpec
from posexport.base.targets.dtypes import BY_ORT_TYPE, BY_PRECISION
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.conversion.export import negotiate
from posexport.conversion.export.build import build
from posexport.conversion.export.save import SharedFile
from posexport.errors import PosexportError
from posexport.graph.precision.apply import apply
from posexport.graph.precision.half.kernels import Kernels
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.run.ort_values import run, to_array, to_value
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import prepare
from tests.small import recipe
from tests.tolerances import agree, agree_each

Exported = Callable[[str, str], Path]

_HEAD = '<ir_version: 10, opset_import: ["": 20, "f": 1]>'
_LEVELS = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


@dataclass(frozen=True)
class _Ports:
    inputs: list[InputSpec] = field(default_factory=list)
    outputs: list[OutputSpec] = field(default_factory=list)


def _half(text: str, precision: str = "fp16", target: str = "portable") -> onnx.ModelProto:
    """The graph of ``text`` in half precision, checked."""
    model = ir.from_proto(onnx.parser.parse_model(_HEAD + text))
    options = PrecisionOptions(precision=precision)
    apply(model, _Ports(), Target(target, 20, dtype=options.dtype), options)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _session(model: onnx.ModelProto | Path, level: str = "all") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = _LEVELS[level]
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _casts(model: onnx.ModelProto, to: int) -> list[str]:
    """What is cast to a type, wherever that is."""
    flat = inliner.inline_local_functions(model)
    return [node.input[0] for node in flat.graph.node if node.op_type == "Cast" and node.attribute[0].i == to]


@pytest.mark.parametrize("level", _LEVELS)
def test_angles_of_large_positions_are_exact(level: str) -> None:
    """In float16 all positions from 2048 on would be even."""
    model = _half("""
        g (int64[n] ids, float[n, n] x) => (float[n, n] y)
        <float frequency = {0.7}> {
            p = Cast <to = 1> (ids)
            angle = Mul (p, frequency)
            c = Cos (angle)
            square = MatMul (x, x)
            y = Mul (square, c)
        }
    """)
    ids = np.arange(4001, 4013)
    (y,) = _session(model, level).run(None, {"ids": ids, "x": np.eye(12, dtype=np.float32)})
    assert sorted(_casts(model, 10)) == ["c", "x"]
    agree(np.diag(y), np.cos(ids * np.float64(np.float32(0.7))), "one rounding", np.float16)


def test_one_cast_of_a_value_that_many_read() -> None:
    model = _half("""
        g (int64[n] ids, float[n, n] x) => (float[n, n] y) {
            p = Cast <to = 1> (ids)
            c = Cos (p)
            square = MatMul (x, x)
            a = Mul (square, c)
            b = Sub (a, c)
            y = Mul (b, c)
        }
    """)
    assert sorted(_casts(model, 10)) == ["c", "x"]


def test_a_function_is_copied_for_calls_of_other_types() -> None:
    """Half of positions is float32, half of an activation 16 bits: two functions, three calls."""
    text = """
        g (int64[n] ids, float[n] x) => (float[n] y) {
            p = Cast <to = 1> (ids)
            fewer = f.Half (p)
            s = Sin (fewer)
            a = MatMul (x, x)
            b = f.Half (a)
            c = f.Half (b)
            y = Add (c, s)
        }
        <domain: "f", opset_import: ["": 20]>
        Half (v) => (w) { two = Constant <value_float = 2.0> () w = Div (v, two) }
    """
    model = _half(text)
    assert sorted(function.name for function in model.functions) == ["Half", "Half2"]
    assert [node.op_type for node in model.graph.node if node.domain == "f"] == ["Half", "Half2", "Half2"]
    ids, x = np.array([4097, 4099]), np.array([1.5, 2.0], np.float32)
    (y,) = _session(model).run(None, {"ids": ids, "x": x})
    agree(y, 6.25 / 4 + np.sin(ids / 2), "one rounding", np.float16)


@pytest.mark.parametrize("positive", [True, False])
def test_branches(positive: bool) -> None:
    """Both branches return what the reader of the If needs; what is around them is cast where it is read."""
    model = _half("""
        g (int64[n] ids, float[n] x, bool positive) => (float[n] y) {
            p = Cast <to = 1> (ids)
            a = Mul (x, x)
            chosen = If (positive) <
                then_branch = one () => (float[n] u) { s = Sin (p) u = Mul (a, s) },
                else_branch = two () => (float[n] v) { v = Neg (p) }
            >
            y = Add (a, chosen)
        }
    """)
    ids, x = np.array([4097, 2051]), np.array([1.5, -2.0], np.float32)
    (y,) = _session(model).run(None, {"ids": ids, "x": x, "positive": np.array(positive)})
    expected = x * x * (1 + np.sin(ids)) if positive else x * x - ids
    agree_each(y, expected, "operator in half precision", np.float16)


def test_squares_of_a_norm_do_not_overflow() -> None:
    model = _half("""
        g (float[n, 3] x) => (float[n, 3] y)
        <float[3] w = {1.0, 2.0, 0.5}, float two = {2.0}, float eps = {0.000001}, int64[1] last = {-1}> {
            h = Neg (x)
            square = Pow (h, two)
            mean = ReduceMean <keepdims = 1> (square, last)
            shifted = Add (mean, eps)
            root = Sqrt (shifted)
            unit = Div (h, root)
            y = Mul (unit, w)
        }
    """)
    x = np.array([[3000.0, -4000.0, 100.0]], np.float32)
    (y,) = _session(model).run(None, {"x": x})
    expected = -x / np.sqrt(np.mean(x.astype(np.float64) ** 2)) * [1.0, 2.0, 0.5]
    agree_each(y, expected, "operator in half precision", np.float16)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("dropped", [-1.7014117e38, -3.4028234e38])
def test_the_score_of_a_dropped_key_is_finite(precision: str, dropped: float) -> None:
    model = _half(
        f"""
        g (int64[n] keep, float[n] scores) => (float[n] y)
        <float dropped = {{{dropped}}}, float zero = {{0.0}}, int64 none = {{0}}> {{
            drops = Equal (keep, none)
            mask = Where (drops, dropped, zero)
            y = Add (scores, mask)
        }}
        """,
        precision,
    )
    numbers = [ir.from_proto(tensor).numpy().astype(np.float64) for tensor in model.graph.initializer]
    least = min(float(array.min()) for array in numbers)
    kept = BY_PRECISION[precision].numpy
    half = float(ml_dtypes.finfo(kept).min)  # type: ignore[no-untyped-call]
    agree(least, half * dropped / -3.4028234e38, "one rounding", kept)
    assert np.isfinite(least)


def test_a_mask_that_is_computed_is_bounded() -> None:
    """(1 - mask) * -1e9, as many modules have it, would be minus infinity in float16: NaN where all keys drop."""
    model = _half("""
        g (int64[n] keep, float[n] scores) => (float[n] y)
        <float one = {1.0}, float large = {-1000000000.0}> {
            k = Cast <to = 1> (keep)
            drops = Sub (one, k)
            mask = Mul (drops, large)
            s = Add (scores, mask)
            y = Softmax <axis = -1> (s)
        }
    """)
    for keep in ([0, 0, 0], [1, 0, 1]):
        feeds = {"keep": np.array(keep), "scores": np.zeros(3, np.float32)}
        (y,) = _session(model).run(None, feeds)
        agree(y, np.full(3, 1 / 3) if not any(keep) else [0.5, 0, 0.5], "one rounding", np.float16)


def test_a_parameter_beyond_float16_is_refused() -> None:
    text = "g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] wide_weight = {1.0, 70000.0, 2.0, 3.0}> "
    text += "{ y = MatMul (x, wide_weight) }"
    with pytest.raises(
        PosexportError, match=r"wide_weight holds 70000, and float16 ends at 65504; use --precision bf16"
    ):
        _half(text)
    assert _half(text, "bf16").graph.initializer[0].data_type == onnx.TensorProto.BFLOAT16


def test_bfloat16_has_no_arithmetic_on_the_cpu() -> None:
    with pytest.raises(PosexportError, match=r"no kernels that compute in bfloat16.* use --precision fp16 or another"):
        _half("g (float[n] x) => (float[n] y) { y = Neg (x) }", "bf16", "cpu")


def test_what_cuda_lacks_in_bfloat16_stays_in_float32_in_portable_graphs() -> None:
    """ONNX Runtime casts nodes without a kernel in float16, and refuses graphs with such in bfloat16."""
    text = (
        "g (float[n, 2] x, int64[4] by) => (float[a, b] z) <float[2, 2] w = {1., 2., 3., 4.}> "
        "{ y = MatMul (x, w)  p = Pad (y, by)  z = MatMul (p, w) }"
    )
    types = {}
    for precision in ("bf16", "fp16"):
        model = shape_inference.infer_shapes(_half(text, precision))
        known = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
        types[precision] = [known[node.output[0]] for node in model.graph.node if node.op_type == "Pad"]
    assert types == {"bf16": [onnx.TensorProto.FLOAT], "fp16": [onnx.TensorProto.FLOAT16]}


def test_what_cuda_leaves_to_the_cpu_is_not_in_bfloat16() -> None:
    """InstanceNormalization of opset 22 has no kernel on CUDA, and one in float32 on the CPU."""
    kernels = {p: Kernels(Target("cuda", 23, dtype=BY_PRECISION[p]), 23) for p in ("bf16", "fp16")}
    node = ir.node("InstanceNormalization", [])
    assert {precision: each.has_half(node) for precision, each in kernels.items()} == {"bf16": False, "fp16": True}


def test_bfloat16_to_onnx_runtime_and_back() -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (bfloat16[n] x) => (bfloat16[n] y, float[n] z) '
    session = _session(onnx.parser.parse_model(text + "{ y = Identity (x) z = Cast <to = 1> (x) }"))
    x = np.array([1.5, -3e38, 0.0078125], ml_dtypes.bfloat16)
    y, z = run(session, ["y", "z"], {"x": x})
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, x.astype(np.float32))
    np.testing.assert_array_equal(to_array(to_value(x)), x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The path of a built-in model in float16."""

    @functools.cache
    def path(name: str, target: str) -> Path:
        source = prepare(name, LoadOptions(settings=("layers=1",)))
        path = tmp_path_factory.mktemp(name) / "model.onnx"
        opset = negotiate.opset(None, static_cache=False, made_for=target)
        build(source, path, recipe(opset=opset, target=target, precision="fp16"))
        return path

    return path


@pytest.mark.all
@pytest.mark.parametrize("level", _LEVELS)
def test_as_exact_as_pytorch_with_float32_positions(exported: Exported, level: str) -> None:
    module = prepare("encoder-t5", LoadOptions(settings=("layers=1",))).module
    truth, own = (PrecisionCopy(module, dtype, outputs=1) for dtype in (torch.float64, torch.float16))
    session = _session(exported("encoder-t5", "portable"), level)
    for length in (17, 301):
        ids = np.random.default_rng(length).integers(1, 250, (2, length))
        mask = np.ones((2, length), np.int64)
        mask[1, length // 3 :] = 0
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (y,), (y64,), (y16,) = session.run(None, feeds), truth(feeds), own(feeds)
        error, reference = (np.abs((x - y64) * mask[..., None]).max() for x in (y, y16))
        assert y.dtype == np.float32
        assert reference > 2**-14
        assert error < 2 * reference


def test_cuda_has_a_kernel_for_every_node_in_its_type(exported: Exported) -> None:
    """By the kernel table: there is no GPU here. What has none in float32 either is not about half precision."""
    flat = onnx.shape_inference.infer_shapes(
        inliner.inline_local_functions(onnx.load(exported("decoder-rope", "cuda")))
    )
    known = {v.name: v.type.tensor_type.elem_type for v in [*flat.graph.value_info, *flat.graph.input]}
    known |= {tensor.name: tensor.data_type for tensor in flat.graph.initializer}
    target, checked = Target("cuda", flat.opset_import[0].version, dtype=BY_ORT_TYPE["tensor(float16)"]), 0
    for node in flat.graph.node:
        if node.input and known.get(node.input[0]) == onnx.TensorProto.FLOAT16:
            assert target.needs_kernel(node.op_type, node.domain) is None, node.op_type
            checked += 1
    assert checked > 20


@pytest.mark.all
def test_a_cache_is_stored_in_half_precision(tmp_path: Path) -> None:
    conversion = posexport.convert(
        "decoder-rope", tmp_path / "half", precision="fp16", settings={"layers": 1}, verify=False
    )
    assert conversion.manifest is not None
    assert {spec.dtype for spec in conversion.manifest.inputs if spec.role == "cache"} == {"float16"}
    assert conversion.manifest.precision_by_class["KV cache"] == "float16"
    session = posexport.load(tmp_path / "half")
    first = session.run({"input_ids": [[5, 2, 7]]})
    cache = {name.replace("present", "past_key_values"): array for name, array in first.items() if name != "logits"}
    assert {array.dtype.name for array in cache.values()} == {"float16"}
    step = session.run({"input_ids": [[9]], "attention_mask": [[1, 1, 1, 1]], **cache})
    whole = session.run({"input_ids": [[5, 2, 7, 9]]})
    assert step["logits"].dtype == np.float32
    agree(step["logits"][:, -1], whole["logits"][:, -1], "model in half precision", np.float16)
    done = session.generate([[5, 2, 7], [9]], max_new_tokens=3)
    assert [len(completion.tokens) for completion in done.completions] == [3, 3]


def test_parts_share_bfloat16_weights(tmp_path: Path) -> None:
    """NumPy has no buffer of bfloat16, which weights in a file of their own are written from."""
    x = np.arange(1024, dtype=np.float32).reshape(2, 512)
    model = _half("g (float[n, 2] x) => (float[n, 512] y) <float[2, 512] w = {" + ", ".join(map(str, x.ravel())) + "}> "
                  "{ y = MatMul (x, w) }", "bf16")  # fmt: skip
    store = SharedFile("weights.bin")
    for name in ("a.onnx", "b.onnx"):
        store.write(ir.from_proto(model), tmp_path / name, None)
    assert (tmp_path / "weights.bin").stat().st_size == 2 * x.size
    (weight,) = ir.load(tmp_path / "b.onnx").graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), x.astype(ml_dtypes.bfloat16))


@pytest.mark.all(but=("decoder-rope-fp16-cuda",))
@pytest.mark.parametrize(
    ("name", "precision", "target"),
    [
        ("decoder-rope", "fp16", "cuda"),
        pytest.param("decoder-rope", "bf16", "portable", marks=pytest.mark.all),
        pytest.param("decoder-alibi", "int4-fp16", "cuda", marks=pytest.mark.all),
        ("encoder-t5", "bf16", "cuda"),
    ],
)
def test_two_layers_convert(name: str, precision: str, target: str, tmp_path: Path) -> None:
    """What layers share is in no graph of one layer; ONNX Runtime checks every type when it opens the file."""
    settings = {"layers": 2, "hidden": 60, "heads": 5}
    posexport.convert(name, tmp_path / "b", settings=settings, precision=precision, target=target, verify=False)


@pytest.mark.parametrize(
    ("target", "channels", "precision", "stays"),
    [("cuda", 5, "fp16", True), ("cuda", 6, "fp16", False), ("cuda", 5, "bf16", False)],
)
def test_gelu_of_an_odd_number_of_elements_is_not_left_to_cudas_pairs(
    target: str, channels: int, precision: str, stays: bool
) -> None:
    """Its float16 kernel computes pairs, and left out the last element of Gemma 2 on an H200."""
    text = f"""
        g (float[n, {channels}] x, float[{channels}, {channels}] w) => (float[n, {channels}] y)
        <float[n, {channels}] b> {{
            a = MatMul (x, w)
            b = Gelu <approximate = "tanh"> (a)
            y = MatMul (b, w)
        }}
    """
    inferred = shape_inference.infer_shapes(_half(text, precision, target))
    (gelu,) = [node for node in inferred.graph.node if node.op_type == "Gelu"]
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    assert (types[gelu.input[0]] == onnx.TensorProto.FLOAT) == stays


@pytest.mark.all(but=("[portable]",))
@pytest.mark.parametrize("target", ["portable", "cpu", "cuda"])
def test_int4_in_half_precision_is_proven_for_every_target(target: str, tmp_path: Path) -> None:
    """For portable graphs weights were dequantized to float32 and cast, a product that no proof reads."""
    settings = {"layers": 2, "hidden": 60, "heads": 5}
    asked = {"precision": "int4-fp16", "target": target, "lengths": [1, 17]}
    written = posexport.convert("encoder-t5", tmp_path / "b", settings=settings, **asked)
    assert written.report is not None
    assert written.report.passed

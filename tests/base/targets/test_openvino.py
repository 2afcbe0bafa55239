"""The target and provider openvino: the form of its graphs, its options, and the proof in bfloat16."""

import json
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import posexport
from posexport.base.system.extras import is_installed
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.providers import PROVIDERS, devices
from posexport.base.targets.target import Target
from posexport.conversion.export.negotiate import opset
from posexport.errors import PosexportError
from posexport.graph.passes.device.float32_positions import Float32Positions
from posexport.graph.passes.graph_pass import Context
from posexport.graph.precision.half.kernels import check_arithmetic, remarks
from posexport.proof.choose import ProofOptions
from posexport.run.bundle.manifest import MANIFEST

OPENVINO = PROVIDERS["openvino"]


def has_device() -> bool:
    """Whether the plug-in is installed and has a device."""
    try:
        return is_installed(OPENVINO.plugin) and bool(devices(OPENVINO))
    except PosexportError:
        return False


needs_plugin = pytest.mark.skipif(not has_device(), reason="the OpenVINO plug-in is not installed, or has no device")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: Any) -> Path:
    """An encoder with RoPE for OpenVINO, proven on a few lengths."""
    into = tmp_path_factory.mktemp("openvino") / "rope"
    posexport.convert("encoder-rope", into, target="openvino", provider="cpu", settings={"layers": 1}, lengths=[5, 17])
    return into


def test_graphs_have_standard_operators_and_no_functions(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx")
    assert not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    operators = [node.op_type for node in model.graph.node]
    assert not {"Scan", "Loop", "If"} & {*operators}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    manifest = posexport.load(bundle).manifest
    assert manifest.target == "openvino"
    assert manifest.passes["unpadding"].nodes == 1


def tail(model: onnx.ModelProto) -> set[str]:
    """The values that OpenVINO computes in float32: between outputs and the last matrix product before them."""
    nodes = {output: node for node in model.graph.node for output in node.output}
    waiting, reached = [output.name for output in model.graph.output], set()
    while waiting:
        node = nodes.get(waiting.pop())
        if node is not None and node.op_type not in ("MatMul", "Gemm", "Conv"):
            waiting += [name for name in node.input if name not in reached]
            reached |= {*node.input}
    return reached


def test_cosines_of_positions_are_before_an_output(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx")
    waves = [node.output[0] for node in model.graph.node if node.op_type in ("Cos", "Sin")]
    assert len(waves) == 2
    assert tail(model) >= {*waves}
    assert posexport.load(bundle).manifest.passes["float32-positions"].nodes == 2


@pytest.mark.parametrize(
    ("body", "protected"),
    [
        # positions and a scale that both depend on the length
        ("a = MatMul(x, w) p = Cos(s) r = Mul(p, p) b = Mul(a, r) y = MatMul(b, w)", {"s", "r"}),
        # places from scores: what lies between two places too, and not the scores
        (
            "a = MatMul(x, w) g = Sigmoid(a) f = Floor(g) r = Sub(g, f) i = Cast<to = 7>(f) c = Gather(x, i) "
            "d = ReduceMax<keepdims = 0>(r) e = Mul(a, d) y = Add(e, a)",
            {"g", "f", "d"},
        ),
        ("a = MatMul(x, w) y = Relu(a)", set()),
    ],
    ids=["angles", "places", "none"],
)
def test_what_an_output_reads(body: str, protected: set[str]) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[5, 7] x, float[5, 7] s, float[7, 7] w) => (float[5, 7] y) {{ {body} }}"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    result = Float32Positions().apply(model, Context(Target("openvino")))
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert tail(proto) >= protected
    assert bool(result.nodes) == bool(protected)
    assert [output.name for output in proto.graph.output] == ["y"]


def test_a_graph_without_an_output_of_real_numbers_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[5, 7] x, float[7, 7] w) => (int64[5] y)
        { p = Cos(x) a = MatMul(p, w) y = ArgMax<axis = 1, keepdims = 0>(a) }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    result = Float32Positions().apply(model, Context(Target("openvino")))
    assert result.rejected == ("the graph has no output of real numbers",)


def test_the_provider_decides_the_form_of_graphs() -> None:
    target = Target("openvino")
    assert target.flat
    assert not target.microsoft
    assert not Target("cpu").flat
    assert Target("cpu", inline=True).flat
    assert target.needs_kernel("RotaryEmbedding") is None
    assert target.needs_kernel("GroupQueryAttention", "com.microsoft") is not None
    assert opset(None, made_for="openvino") == 18
    with pytest.raises(PosexportError, match="TensorScatter, which OpenVINO does not compute; use --cache dynamic,"):
        opset(None, made_for="openvino", static_cache=True)


def test_the_precision_of_a_session_is_an_option() -> None:
    assert OPENVINO.session_options({"precision": "bf16"}) == {
        "load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'
    }
    assert OPENVINO.precision(None) is OPENVINO.precision({"precision": "fp32"}) is None
    assert OPENVINO.precision({"precision": "bf16"}) == "bf16"
    assert PROVIDERS["cpu"].precision({}) is None
    with pytest.raises(PosexportError, match="precision of OpenVINO takes fp32 or bf16, got 'fp16'"):
        OPENVINO.session_options({"precision": "fp16"})
    with pytest.raises(PosexportError, match="OpenVINO has no option 'tf32'; it has precision"):
        OPENVINO.session_options({"tf32": "on"})


def test_files_of_16_bits_are_refused_with_what_to_do() -> None:
    with pytest.raises(PosexportError, match=r"cannot have --precision bf16; use precision=bf16 of its sessions"):
        check_arithmetic(Target("openvino", dtype=BY_PRECISION["bf16"]))
    with pytest.raises(PosexportError, match="cannot have --precision fp16; use another --target"):
        check_arithmetic(Target("openvino", dtype=BY_PRECISION["fp16"]))
    # it reads them, and computes in float32
    assert not any("OpenVINO" in sentence for sentence in remarks(Target(dtype=BY_PRECISION["fp16"])))


def test_the_proof_of_a_session_in_bfloat16_is_of_the_graph_itself() -> None:
    options = ProofOptions(provider="openvino", provider_options={"precision": "bf16"})
    assert options.computed == "bf16"
    assert not options.copied
    assert ProofOptions(provider="openvino").computed == "fp32"


def test_the_stored_sample_is_not_for_another_precision(bundle: Path) -> None:
    with pytest.raises(PosexportError, match="precision=bf16 of OpenVINO needs --against SOURCE or --tolerance"):
        posexport.verify(bundle, provider="openvino", provider_options={"precision": "bf16"})


SIZES = {"layers": 1, "hidden": 64, "heads": 4, "feedforward": 96}


@pytest.mark.all
def test_weights_of_4_bits_are_dequantized_when_the_graph_is_compiled(tmp_path: Path) -> None:
    options: Any = {"target": "openvino", "provider": "cpu", "precision": "int4"}
    result = posexport.convert("decoder-rope", tmp_path / "int4", settings=SIZES, lengths=[5], **options)
    assert result.report is not None
    assert result.report.passed
    model = onnx.load(tmp_path / "int4" / "model.onnx")
    constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    read = [node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"]
    # the table of embeddings too, which the head shares
    assert {constants[name] for name in read} >= {(64, 64), (64, 96), (96, 64)}
    with pytest.raises(
        PosexportError, match=r"OpenVINO reads weights in whole blocks of 32, and .*query.weight has 60"
    ):
        posexport.convert("decoder-rope", tmp_path / "60", settings={"layers": 1}, verify=False, **options)
    options |= {"precision": "int8"}
    with pytest.raises(PosexportError, match="no kernel on OpenVINO; use --precision int8 --weight-only"):
        posexport.convert("decoder-rope", tmp_path / "int8", settings=SIZES, verify=False, **options)


def test_bfloat16_is_for_graphs_that_keep_positions(bundle: Path, tmp_path: Path) -> None:
    posexport.convert("encoder-rope", tmp_path / "portable", settings={"layers": 1}, verify=False)
    options = {"precision": "bf16"}
    with pytest.raises(PosexportError, match=r"rounds positions in .*, which has target portable: convert it again"):
        posexport.load(tmp_path / "portable", provider="openvino", provider_options=options)
    path = bundle / MANIFEST
    stored = path.read_text()
    changed = json.loads(stored)
    changed["passes"]["float32-positions"] |= {"nodes": 0, "rejected": ["no y"]}
    path.write_text(json.dumps(changed))
    try:
        with pytest.raises(PosexportError, match=r"rounds positions in .*: no y; leave it out"):
            posexport.load(bundle, provider="openvino", provider_options=options)
    finally:
        path.write_text(stored)


@needs_plugin
def test_verify_in_float32_and_in_bfloat16(bundle: Path) -> None:
    assert posexport.verify(bundle, provider="openvino").passed
    report = posexport.verify(
        bundle,
        against="encoder-rope",
        settings={"layers": 1},
        provider="openvino",
        provider_options={"precision": "bf16"},
        lengths=[17],
    )
    assert report.precision == "bf16"
    assert report.passed
    assert 1e-4 < max(point.error for point in report.points) < 2e-2

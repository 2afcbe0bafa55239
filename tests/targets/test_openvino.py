"""The target and provider openvino: the form of its graphs, its options, and the proof in bfloat16."""

from pathlib import Path
from typing import Any

import onnx
import pytest

import posexport
from posexport.errors import PosexportError
from posexport.export.negotiate import opset
from posexport.parity.choose import ProofOptions
from posexport.system.extras import is_installed
from posexport.targets.providers import PROVIDERS, devices
from posexport.targets.target import Target

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


def test_graphs_have_standard_operators_and_no_bodies(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx")
    assert not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    assert not {"Scan", "Loop", "If"} & {node.op_type for node in model.graph.node}
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    manifest = posexport.load(bundle).manifest
    assert manifest.target == "openvino"
    assert manifest.passes["unpadding"].rejected == ["the graph may hold no Loop (--inline)"]


def test_the_provider_decides_the_form_of_graphs() -> None:
    target = Target("openvino")
    assert target.flat
    assert not target.microsoft
    assert not Target("cpu").flat
    assert Target("cpu", inline=True).flat
    assert target.needs_kernel("RotaryEmbedding") is None
    assert target.needs_kernel("GroupQueryAttention", "com.microsoft") is not None
    assert opset(None, made_for="openvino") == 18


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


def test_the_proof_of_a_session_in_bfloat16_is_of_the_graph_itself() -> None:
    options = ProofOptions(provider="openvino", provider_options={"precision": "bf16"})
    assert options.computed == "bf16"
    assert not options.copied
    assert ProofOptions(provider="openvino").computed == "fp32"


def test_the_stored_sample_is_not_for_another_precision(bundle: Path) -> None:
    with pytest.raises(PosexportError, match="precision=bf16 of OpenVINO needs --against SOURCE or --tolerance"):
        posexport.verify(bundle, provider="openvino", provider_options={"precision": "bf16"})


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

"""Where nodes without a kernel of the provider are computed, as ONNX Runtime decides it: the CPU takes them first."""

import re
from pathlib import Path

import pytest

import posexport
from posexport.base.targets.listed import LISTED
from posexport.base.targets.providers import PROVIDERS, provider_named
from posexport.errors import PosexportError
from posexport.inspect.audit.analyses.kernels import runtime
from posexport.inspect.audit.formats import text
from tests.inspect.audit.graphs import saved

_INT8 = """
    <ir_version: 8, opset_import: ["": 18]>
    int8 (float[B, T, 3] x, float[B, T, 3] z) => (float[B, T, 2] y)
    <int8[3, 2] weight = {1, 2, 3, 4, 5, 6}, float scale = {0.5}>
    {
        q, s, zero = DynamicQuantizeLinear (x)
        sums = MatMulInteger (q, weight, zero)
        wide = Cast <to = 1> (sums)
        scales = Mul (s, scale)
        y = Mul (wide, scales)
    }
"""
_GELU = """
    <ir_version: 9, opset_import: ["": 20]>
    activation (float[B, T, 3] x, int64[B, T] ids) => (float[B, T, 3] y, int64[B, T] next)
    <int64 one = {1}> { y = Gelu (x)  next = Sub (ids, one) }
"""


@pytest.mark.parametrize(
    ("provider", "copied"),
    [
        ("cuda", "1 DynamicQuantizeLinear, 1 MatMulInteger in uint8"),
        ("webgpu", "1 DynamicQuantizeLinear, 1 MatMulInteger"),
    ],
)
def test_rounded_activations_go_to_the_cpu(provider: str, copied: str, tmp_path: Path) -> None:
    """DynamicQuantizeLinear is a function of other operators too: the CPU has a kernel for it, and takes it first."""
    findings = posexport.audit(saved(_INT8, tmp_path), provider=provider, select=["PX401", "PX402", "PX407"])
    (finding,) = findings
    assert finding.code == "PX407"
    assert finding.message.startswith(f"{copied}: {runtime(PROVIDERS[provider].ort_name)} has no kernels of ")
    assert findings.skipped == {}


def test_a_plugin_has_its_version() -> None:
    assert runtime("CUDAExecutionProvider").startswith("ONNX Runtime 1.")
    assert runtime("WebGpuExecutionProvider").startswith("onnxruntime-ep-webgpu 0.")


def test_integers_of_sizes_are_no_finding(tmp_path: Path) -> None:
    """WebGPU has no int64 arithmetic, which the host does in any case; Gelu it has."""
    assert not posexport.audit(saved(_GELU, tmp_path), provider="webgpu", select=["PX401", "PX402", "PX407"])


def test_without_a_table_the_output_says_so(tmp_path: Path) -> None:
    path = saved(_INT8, tmp_path)
    findings = posexport.audit(path, provider="openvino")
    assert list(findings.skipped) == ["PX401, PX402, PX407"]
    line = next(line for line in text.lines(findings) if "did not run" in line)
    assert line.endswith("did not run: kernels were not looked at, as there is no table of those of OpenVINO")
    assert not posexport.audit(path, provider="openvino", select=["PX1"]).skipped
    assert not posexport.audit(path).skipped


_MASKED = """
    <ir_version: 9, opset_import: ["": 20]>
    masked (int64[B, T] ids, float[4, 3] table) => (float[B, T, 3] y)
    <int64 one = {1}>
    {
        rows = Gather (table, ids)
        wave = Erf (rows)
        same = Equal (ids, one)
        part = Cast <to = 1> (same)
        y = Mul (wave, rows)
        unused = Not (same)
    }
"""


@pytest.mark.parametrize(
    ("provider", "off"),
    [
        ("coreml", "1 Equal, 1 Not: ONNX Runtime 1.32.0 has no kernels of CoreML for them"),
        ("dml", None),
        ("qnn", "1 Erf: onnxruntime-qnn 2.0.0 has no kernels of QNN for them"),
    ],
)
def test_what_falls_off_a_provider_of_a_published_list(provider: str, off: str | None, tmp_path: Path) -> None:
    findings = posexport.audit(saved(_MASKED, tmp_path), provider=provider, select=["PX4"])
    assert findings.skipped == {}
    messages = {finding.code: finding.message for finding in findings}
    assert messages.keys() == {"PX409", "PX410", *(["PX407"] if off else [])}
    assert messages["PX409"].startswith("open sizes of 'ids' [B, T]: ")
    assert messages["PX410"].startswith("inputs in int64, 'ids': ")
    if off:
        count = sum(int(number) for number in re.findall(r"(\d) [A-Z]", off.partition(":")[0]))
        assert messages["PX407"].startswith(off)
        assert f"({count} of 6 nodes)" in messages["PX407"]


def test_a_graph_of_one_size_without_int64_is_what_they_want(tmp_path: Path) -> None:
    """PX406 says elsewhere that the length is fixed."""
    path = saved(_MASKED.replace("int64", "int32").replace("[B, T", "[1, 7"), tmp_path)
    for provider in LISTED:
        codes = {finding.code for finding in posexport.audit(path, provider=provider, select=["PX4"])}
        assert codes <= {"PX407"}, provider
    assert [finding.code for finding in posexport.audit(path, select=["PX4"])] == ["PX406"]


def test_published_lists_run_nothing(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="which posexport cannot on QNN; leave out --run or --provider"):
        posexport.audit(saved(_MASKED, tmp_path), provider=["cpu", "qnn"], run=True)
    with pytest.raises(PosexportError, match="unknown provider 'qnn'"):
        provider_named("qnn")

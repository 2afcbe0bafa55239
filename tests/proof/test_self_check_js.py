"""The sample in JavaScript: examples/self-check.mjs gives the errors that Python does, and finds a broken model."""

import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

import posexport

#: of errors, which are printed with two digits; another ONNX Runtime sums in another order
LAST_DIGITS = 4e-7

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".cache" / "clients" / "node"

pytestmark = [
    pytest.mark.all,
    pytest.mark.skipif(not (NODE / "node_modules" / "onnxruntime-node").exists(), reason="ci/lab/clients/setup node"),
]


def self_check(bundle: Path) -> tuple[int, dict[str, tuple[str, float]]]:
    """The exit code, and verdict and error by what was compared."""
    program = shutil.copy(ROOT / "examples" / "self-check.mjs", NODE)  # modules are looked for beside the program
    done = subprocess.run(["node", program, str(bundle)], capture_output=True, text=True, check=False)
    line = r"^(pass|FAIL)  (\S+, length \d+, batch \d+(?:, in calls of [\d,]+)?): (\S+) \("
    rows = re.findall(line, done.stdout, re.MULTILINE)
    assert rows, done.stderr
    return done.returncode, {what: (verdict, float(error.replace("Infinity", "inf"))) for verdict, what, error in rows}


@pytest.mark.parametrize(("model", "beyond"), [("encoder-absolute", 21), ("decoder-learned", 21), ("decoder-t5", None)])
def test_node_gives_the_errors_that_python_gives(tmp_path: Path, model: str, beyond: int | None) -> None:
    sizes = {"layers": 1, "hidden": 20, "feedforward": 37, "vocab": 61} | ({"max_positions": 20} if beyond else {})
    posexport.convert(model, tmp_path / "bundle", settings=sizes, lengths=[2, 9, 17])
    code, found = self_check(tmp_path / "bundle")
    assert code == 0
    expected = {}
    for point in posexport.verify(tmp_path / "bundle").points:
        if point.tolerance is not None:
            calls = f", in calls of {','.join(map(str, point.point.calls))}" if point.point.calls else ""
            expected[f"{point.output}, length {point.length}, batch {point.batch}{calls}"] = point.error
    refusals = {what for what in found if what.startswith("refusal")}
    assert refusals == ({f"refusal, length {beyond}, batch 1"} if beyond else set())
    assert set(found) - refusals == set(expected)
    if model.startswith("decoder"):
        assert any("in calls of" in what and what.startswith("logits") for what in found)
    for what, error in expected.items():
        assert error / 3 - LAST_DIGITS <= found[what][1] <= 3 * error + LAST_DIGITS, what

    model_file = tmp_path / "bundle" / "model.onnx"
    graph = onnx.load(model_file)
    weight = next(t for t in graph.graph.initializer if len(t.dims) == 2 and t.data_type == onnx.TensorProto.FLOAT)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    onnx.save(graph, model_file)
    code, found = self_check(tmp_path / "bundle")
    assert code == 1
    assert any(verdict == "FAIL" for verdict, _ in found.values())


@pytest.mark.parametrize("provider", ["wasm", "webgpu"])
def test_a_browser_gives_them_too(tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """WebGPU by SwiftShader, which Chromium brings."""
    monkeypatch.syspath_prepend(ROOT / "ci" / "lab" / "clients")
    browser = pytest.importorskip("self_check")
    if not (browser.web.CLIENTS / "chromium" / "chromium").exists():
        pytest.skip("ci/lab/clients/setup web")
    sizes = {"layers": 1, "hidden": 20, "feedforward": 37, "vocab": 61, "max_positions": 20}
    posexport.convert("decoder-learned", tmp_path / "bundle", settings=sizes, lengths=[2, 9])
    checked = browser.in_browser(tmp_path / "bundle", provider)
    assert all(each["passed"] for each in checked)
    assert {each["output"] for each in checked} >= {"logits", "refusal", "present.0.key"}
    assert any(each["point"]["calls"] for each in checked)

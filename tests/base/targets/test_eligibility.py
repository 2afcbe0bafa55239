"""What the kernel table says of a bundle's nodes on a provider that does not load here."""

import json
import shutil
from pathlib import Path

import onnx.parser
import pytest

from posexport.base.targets.providers import CUDA
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.inspect.explain.eligibility import _nodes, eligibility
from posexport.run.providers import check_loads
from tests.command import posexport

MODEL = """
<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1, "posexport": 1]>
g (bfloat16[N] x, float[B, T, 8] q, float[B, G, T, T] bias) => (bfloat16[N] y, float[B, T, 8] a, float[B, T, 8] b)
{
    y = posexport.Turned(x)
    a = com.microsoft.MultiHeadAttention<num_heads = 1>(q, q, q, "", "", bias)
    b = com.microsoft.MultiHeadAttention<num_heads = 1>(q, q, q)
}
<domain: "posexport", opset_import: ["": 18]>
Turned (x) => (y)
{
    turned = Cos(x)
    y = Add(turned, x)
}
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("eligibility") / "bundle"
    settings = ("layers=1", "hidden=16", "heads=2", "vocab=61")
    options = ConvertOptions(settings=settings, target="cuda", precision="fp16", cache="static", verify=False)
    convert("decoder-nope", directory, options)
    return directory


def test_nodes_of_functions_are_judged_by_their_types(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    found = [(node.op_type, node.dtype, node.kernel) for node in _nodes("model.onnx", path, CUDA)]
    assert found == [
        ("Cos", "bfloat16", False),
        ("Add", "bfloat16", True),
        ("MultiHeadAttention", "float", True),
        ("MultiHeadAttention", "float", True),
    ]
    cos, _, biased, plain = _nodes("model.onnx", path, CUDA)
    assert cos.reason == "CUDA has kernels for double, float, float16 only; it runs on the CPU"
    assert biased.reason.startswith("no flash attention: it has an attention bias")
    assert plain.reason == "flash, memory-efficient or cuDNN attention"


def test_every_node_of_a_bundle_for_cuda_has_a_kernel(bundle):
    found = eligibility(bundle, "cuda", "nobody asked")
    assert [node for node in found.nodes if not node.kernel] == []
    kinds = [node.reason for node in found.nodes if node.op_type == "GroupQueryAttention"]
    assert kinds == ["fused: no attention bias"]


def test_the_command_line(bundle):
    try:
        check_loads("cuda")
    except PosexportError as err:
        why = str(err)
    else:
        pytest.skip("CUDA loads here")
    told = posexport("explain", bundle, "--provider", "cuda")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{bundle}, by the kernel table of onnxruntime ")
    assert why in told.stdout
    asked = posexport("explain", bundle, "--provider", "cuda", "--json")
    document = json.loads(asked.stdout)
    assert document["provider"] == "cuda"
    assert all(node["reason"] for node in document["nodes"])


def test_an_altered_bundle_is_refused(bundle, tmp_path):
    altered = shutil.copytree(bundle, tmp_path / "altered")
    with (altered / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(PosexportError, match=r"model\.onnx"):
        eligibility(altered, "cuda", "")

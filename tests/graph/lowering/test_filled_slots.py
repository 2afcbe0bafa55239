"""Attention to a static KV cache without a branch: what the graph is, and that it is right."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.manifest import computed_by
from posexport.conversion.options import ConvertOptions
from posexport.graph.lowering.plan import FILLED_SLOTS
from posexport.graph.ops.attention import AttentionSpec
from posexport.run.bundle.read import read

SETTINGS = ("layers=2", "hidden=32", "heads=4", "vocab=61")


def options(*settings: str, **given: object) -> ConvertOptions:
    wanted = {"target": "cuda", "cache": "static", "precision": "fp16", **given}
    return ConvertOptions(settings=(*SETTINGS, *settings), **wanted)


def operators(bundle: Path) -> set[str]:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    return {node.op_type for body in (model.graph, *model.functions) for node in body.node}


@pytest.mark.all
def test_only_the_lowering_that_was_asked_for_has_no_branch(tmp_path):
    for lowering in ("auto", "filled-slots"):
        convert("decoder-nope", tmp_path / lowering, options(verify=False, lowering=lowering))
    assert "If" in operators(tmp_path / "auto")
    found = operators(tmp_path / "filled-slots")
    assert not {"If", "GroupQueryAttention", "OrderSuffices"} & found
    assert {"TensorScatter", "MultiHeadAttention"} <= found


@pytest.mark.parametrize(
    ("target", "cache", "words"),
    [("cpu", "append", "pay on a device"), ("cuda", "grow", "fixed size"), ("cuda", "static", "writes to itself")],
)
def test_where_it_does_not_apply(target, cache, words):
    spec = AttentionSpec(causal=True, mask="keys", cache=cache)
    assert words in (FILLED_SLOTS.refusal(spec, Target(target, 24)) or "")
    assert FILLED_SLOTS.refusal(replace(spec, cache="append"), Target("cuda", 24)) is None


def test_it_has_no_branch_and_the_manifest_says_what_computed_operators_in_emulation(tmp_path):
    bundle = tmp_path / "bundle"
    convert("decoder-nope", bundle, options(lowering="filled-slots", lengths=(5,)))
    assert not {"If", "GroupQueryAttention", "OrderSuffices"} & operators(bundle)
    found = read(bundle).emulated
    assert "com.microsoft::MultiHeadAttention" in found["kernel"]
    assert "TensorScatter" in found["kernel"]
    assert "MultiHeadAttention" not in found["kernel"]
    assert found.get("function", []) in ([], ["CastLike"])


def test_an_operator_without_a_kernel_on_the_cpu_is_its_definition(tmp_path):
    nodes = [onnx.helper.make_node(name, ["x"], [name], domain=domain) for name, domain in KINDS]
    ports = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])]
    opsets = [onnx.helper.make_opsetid("", 24), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph(nodes, "g", ports, [onnx.ValueInfoProto(name="Relu")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "model.onnx")
    assert computed_by([tmp_path / "model.onnx"]) == {
        "kernel": ["Relu", "com.microsoft::QuickGelu"],
        "function": ["CastLike"],
    }


#: with kernels for the CPU, and without
KINDS = [("Relu", ""), ("QuickGelu", "com.microsoft"), ("CastLike", "")]


@pytest.mark.all
@pytest.mark.parametrize("name", ["rope", "alibi"])
@pytest.mark.parametrize("settings", [(), ("kv_heads=2",)], ids=["every head", "groups"])
def test_it_is_proven_in_emulation(tmp_path, name, settings):
    done = convert(f"decoder-{name}", tmp_path / "bundle", options(*settings, lowering="filled-slots"))
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    assert not done.report.unreached

"""Mixture of experts as two linear projections: transformers' values, and quantized weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import posexport
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.apply import apply
from tests.text_graphs import graph, matrices, rows
from tests.tolerances import agree

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

import transformers

from ci.through import tiny
from posexport.through.experts import dense_experts, stack

SETTINGS = {"hidden_size": 20, "intermediate_size": 14, "moe_intermediate_size": 14, "num_attention_heads": 4}


def layer_of(kind: str, prefix: str, **settings: object) -> torch.nn.Module:
    """The experts of a type, with random weights in float64."""
    modeling = __import__(f"transformers.models.{kind}.modeling_{kind}", fromlist=["experts"])
    name = next(name for name in (f"{prefix}TextConfig", f"{prefix}Config") if hasattr(modeling, name))
    config = getattr(modeling, name)(**SETTINGS, **settings)
    config._experts_implementation = "eager"
    layer = getattr(modeling, f"{prefix}Experts")(config).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3
    return layer


@pytest.mark.parametrize(
    ("kind", "prefix", "settings"),
    [
        ("mixtral", "Mixtral", {"num_local_experts": 5}),
        ("gpt_oss", "GptOss", {"num_local_experts": 5}),  # transposed, interleaved, with biases
        ("nemotron_h", "NemotronH", {"n_routed_experts": 5}),  # without a gate
        ("muse_spark", "MuseSpark", {"num_local_experts": 5, "moe_hidden_size": 20}),  # each expert normalised
    ],
)
def test_the_sum_of_transformers_experts(kind: str, prefix: str, settings: dict[str, int]) -> None:
    layer = layer_of(kind, prefix, **settings)
    x = torch.randn(7, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    scores = torch.randn(7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights, chosen = scores.softmax(-1).topk(2)
    with torch.no_grad():
        expected = layer(x, chosen, weights)
        stack(layer)
        stack(layer)  # of a model that is used again
        y = dense_experts(layer, x, chosen, weights)
    agree(y, expected, "model", "float64")
    if kind != "muse_spark":
        assert {parameter.ndim for name, parameter in layer.named_parameters() if "bias" not in name} == {2}


@pytest.mark.all
def test_weights_of_experts_are_quantized(tmp_path: Path) -> None:
    """Both projections of a layer, in blocks of int4, which the proof compares with the checkpoint's."""
    config = transformers.MixtralConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, num_local_experts=5, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(4)
    model = transformers.MixtralForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    model.save_pretrained(tmp_path / "checkpoint")
    done = posexport.convert(tmp_path / "checkpoint", tmp_path / "int4", precision="int4", lengths=[1, 17], threads=1)
    assert done.good, done.to_text()
    stored = {
        value.name: value.shape for value in ir.load(tmp_path / "int4" / "model.onnx").graph.initializers.values()
    }
    experts = {name.partition("experts.")[2]: list(shape) for name, shape in stored.items() if "experts." in name}
    assert experts["gate_up_proj_int4"] == [32, 5 * 96]
    assert experts["down_proj_int4"] == [5 * 48, 32]
    assert not done.remarks or not any("several matrices" in remark for remark in done.remarks)


@pytest.mark.parametrize(
    ("kind", "options", "operator"),
    [
        pytest.param("mixtral", {"precision": "int4"}, "QMoE", marks=pytest.mark.all),
        # with limits, beyond which 4% of its channels are
        pytest.param("gpt_oss", {}, "MoE", marks=pytest.mark.all),
        pytest.param("mixtral", {}, "MoE", marks=pytest.mark.all),
        pytest.param("mixtral", {"precision": "int8", "weight_only": True}, "rounds what it", marks=pytest.mark.all),
        pytest.param("gpt_oss", {"precision": "int4"}, "channels that alternate", marks=pytest.mark.all),
    ],
)
def test_a_token_is_computed_by_its_experts_alone(
    kind: str, options: dict[str, Any], operator: str, tmp_path: Path
) -> None:
    """On the CPU; an auditor finds both projections of the checkpoint."""
    tiny.make(tmp_path / "checkpoint", _of_whole_blocks(kind))
    done = posexport.convert(
        tmp_path / "checkpoint", tmp_path / "bundle", target="cpu", lengths=[1, 17], threads=1, **options
    )
    assert done.good, done.to_text()
    assert done.manifest is not None
    result = done.manifest.passes["routed-experts"]
    if "MoE" not in operator:
        assert not result.nodes
        assert operator in result.rejected[0]
        return
    assert result.nodes == 2
    model = ir.load(tmp_path / "bundle" / "model.onnx")
    assert [node.op_type for node in model.graph].count(operator) == 2
    # the weights of the products that are gone are stored once
    stored = [name for name in model.graph.initializers if "experts." in name and "bias" not in name]
    assert all(name.endswith("by_expert") for name in stored), stored
    found = posexport.audit(tmp_path / "bundle", against=tmp_path / "checkpoint", select=["PX601", "PX602"])
    assert not list(found.findings), found.findings


def _of_whole_blocks(kind: str) -> dict[str, Any]:
    """The entry of a type, with channels of 64 and 96."""
    entry = tiny.table()[kind]
    return {**entry, "settings": {**entry["settings"], "hidden_size": 64, "intermediate_size": 96}}


@pytest.mark.all
@pytest.mark.parametrize(
    ("kind", "target"),
    [("qwen3_next", "cpu"), ("nemotron_h", "portable"), ("jamba", "cpu"), ("inkling_text", "cpu"), ("gpt_oss", "cpu")],
)
def test_types_with_experts_at_int4(kind: str, target: str, tmp_path: Path) -> None:
    tiny.make(tmp_path / kind, tiny.table()[kind])
    done = posexport.convert(
        tmp_path / kind, tmp_path / "int4", precision="int4", target=target, lengths=[1, 17, 65], threads=1
    )
    assert done.good, done.to_text()
    assert done.manifest is not None
    assert done.manifest.projections["int4"]


@pytest.mark.parametrize("body", ["z = MatMul(y, w)", "one = Gather(w, at)  z = MatMul(y, one)"])
def test_what_stays_in_float_is_said(body: str) -> None:
    """Products with every expert, and with one after the other."""
    text = f"HEAD g (float[r, 40] x, float u, float w, int64 at) => (float z) {{ y = MatMul(x, u)  {body} }}"
    weights = {"u": matrices(5)(40, 96), "w": matrices(6)(3 * 96, 40).reshape(3, 96, 40)}
    model = graph(text, 23, **weights, at=np.array(1))
    result = apply(model, rows(40), Target("cpu", 23), PrecisionOptions(precision="int4"))
    assert result.remarks == (
        "1 weights of several matrices stay in float, the first w: only products with one matrix are quantized",
    )

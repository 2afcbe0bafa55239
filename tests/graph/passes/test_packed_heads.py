"""Packed heads: what the pass takes and leaves, and that the forms with split heads stay right without it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from onnxruntime import InferenceSession
from torch import nn

from posexport.base.targets.target import Target
from posexport.conversion.export.build import build
from posexport.graph.lowering.lowering import function
from posexport.graph.lowering.plan import ATTENTION
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes import pipeline
from posexport.graph.protos import all_nodes
from posexport.modules.live_module import module_source
from posexport.sources.builtin import builtin_source as builtin
from posexport.sources.prepare import with_kv_cache
from tests.graph.lowering.test_lowering import CALLS, LEFT, PADDED, WHOLE, Lowered, applies, source
from tests.small import SHARED, recipe
from tests.tolerances import agree
from tests.traces import Traces


def built(path: Path, name: str, *settings: str, cache: str = "", **options: Any) -> onnx.ModelProto:
    made = builtin(name, task=None, settings_given=(*SHARED, *settings))
    if cache:
        made = with_kv_cache(made, cache, "at-write")  # type: ignore[arg-type]
    build(made, path, recipe(**{"opset": 24, "target": "cpu", **options}))
    return onnx.load(path)


def count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(model.graph.node))


@pytest.mark.all(but=("decoder-rope",))
@pytest.mark.parametrize(
    ("name", "settings", "cache", "attention", "rotations"),
    [
        pytest.param("encoder-nope", (), "", "Packed", 0, marks=pytest.mark.all),
        ("encoder-rope", ("rotary_dim=6",), "", "Packed", 8),
        pytest.param("encoder-shaw-kv", (), "", "PackedMaskedClippedClippedValuesAttention", 0, marks=pytest.mark.all),
        ("encoder-transformer-xl", (), "", "PackedMaskedHeadDistanceAttention", 0),
        ("decoder-rope", ("kv_heads=1",), "static", "PackedCachedGrouped", 8),
    ],
)
def test_no_axis_is_turned_around_attention(
    name: str, settings: tuple[str, ...], cache: str, attention: str, rotations: int, tmp_path: Path
) -> None:
    found = count(built(tmp_path / "m.onnx", name, *settings, cache=cache))
    # an encoder's are there for a row without its padding too, rotations of a decoder for a step without padding
    assert sum(many for kind, many in found.items() if kind.startswith(attention) and kind.endswith("Attention")) == (
        2 if cache else 4
    )
    assert sum(many for kind, many in found.items() if "Packed" in kind and "Rotation" in kind) == rotations
    # those of a cached model are of its mask
    assert found["Transpose"] <= (2 if cache else 0)


@pytest.mark.all(but=("encoder-rope-settings0-options0",))
@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        ("encoder-rope", (), {"target": "portable", "opset": 18}),
        pytest.param("encoder-rope", (), {"inline": True}, marks=pytest.mark.all),
        # a growing cache holds keys with their heads apart
        ("decoder-rope", (), {}),
    ],
)
def test_left_as_it_is(name: str, settings: tuple[str, ...], options: dict[str, Any], tmp_path: Path) -> None:
    found = count(built(tmp_path / "m.onnx", name, *settings, **options))
    assert not [kind for kind in found if kind.startswith("Packed")]
    assert found["Transpose"] >= 8


APART = ("nope", "alibi", "relative-key", "relative-key-query", "rope", "shaw-kv", "complex")


def ways() -> Iterator[Any]:
    """Every lowering of every model; the short run has those of opset 18 of one."""
    for name in APART:
        for lowering in WHOLE:
            few = lowering != "attention" and name == "alibi"
            yield pytest.param(name, lowering, marks=() if few else pytest.mark.all)


@pytest.mark.parametrize(("name", "lowering"), list(ways()))
def test_heads_apart(name: str, lowering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: Traces) -> None:
    """Every lowering without the pass: as for queries that come from no map."""
    monkeypatch.setattr(pipeline, "PASSES", [each for each in pipeline.PASSES if each.name != "packed-heads"])
    made = Lowered(source(f"encoder-{name}"), 18, traces)
    if applies(made, lowering):
        assert made.check(tmp_path / "m.onnx", lowering, PADDED[1:4]) == {lowering}
        names = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
        assert not [kind for kind in names if kind.startswith("Packed")]


@pytest.mark.all
def test_heads_apart_behind_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: Traces) -> None:
    monkeypatch.setattr(pipeline, "PASSES", [each for each in pipeline.PASSES if each.name != "packed-heads"])
    made = Lowered(with_kv_cache(source("decoder-alibi", "kv_heads=1"), "static", "at-write"), 24, traces)
    assert made.check(tmp_path / "m.onnx", "auto", [*LEFT[:3], *CALLS[:2]]) == {"group-query"}


class ThreeThenFive(nn.Module):
    """Three heads of four channels, then five, split by the same shape [batch, tokens, -1, 4]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(17, 7)
        self.qkv = nn.ModuleList(nn.Linear(7, 4 * heads) for heads in (3, 3, 3, 5, 5, 5))
        self.out = nn.ModuleList(nn.Linear(4 * heads, 7) for heads in (3, 5))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(input_ids)
        split = (*x.shape[:2], -1, 4)
        for number, out in enumerate(self.out):
            q, k, v = (self.qkv[3 * number + n](x).view(split).transpose(1, 2) for n in range(3))
            x = x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


def test_layers_of_other_widths_share_the_shape_that_splits_them(tmp_path: Path) -> None:
    module, ids = ThreeThenFive(), torch.arange(33).reshape(3, 11) % 17
    build(module_source(module, {"input_ids": ids[:2]}), tmp_path / "m.onnx", recipe(opset=23, target="cpu"))
    assert count(onnx.load(tmp_path / "m.onnx"))["PackedAttention"] == 2
    (values,) = InferenceSession(tmp_path / "m.onnx").run(None, {"input_ids": ids.numpy()})
    agree(torch.tensor(values), module(ids), "model in float32", torch.float32)


class NormalisedHeads(nn.Module):
    """5 heads of 12: queries are normalised before their transposition, keys after it, or both over all tokens."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(60, 60) for _ in range(3))
        self.norms = nn.ModuleList(nn.RMSNorm(12) if axes == 1 else nn.RMSNorm([5, 12]) for _ in range(2))
        for number, norm in enumerate(self.norms):
            nn.init.uniform_(norm.weight, 0.5 + number, 2 + number)
        self.last = axes == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (project(x).view(*x.shape[:2], 5, 12) for project in self.project)
        q, v = self.norms[0](q).transpose(1, 2), v.transpose(1, 2)
        k = self.norms[1](k.transpose(1, 2)) if self.last else self.norms[1](k).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("axes", "attention"), [(1, "PackedAttention"), (2, "Attention")])
def test_normalised_heads_are_packed_where_each_is_normalised_alone(axes: int, attention: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = NormalisedHeads(axes), torch.randn(3, 11, 60)
    build(module_source(module, {"x": x[:2]}), tmp_path / "m.onnx", recipe(opset=23, target="cpu"))
    found = count(onnx.load(tmp_path / "m.onnx"))
    assert found[attention] == 1
    assert axes == 2 or not found["Transpose"]
    (values,) = InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()})
    agree(torch.tensor(values), module(x), "model in float32", torch.float32)


class WithKeys(nn.Module):
    """Attention that returns its keys [B, H, T, D] too, as the first call of a decoder does for the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(60, 60) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (project(x).view(*x.shape[:2], 5, 12).transpose(1, 2) for project in self.project)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), k


def test_keys_that_are_outputs_keep_their_heads_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = WithKeys(), torch.randn(3, 11, 60)
    build(module_source(module, {"x": x[:2]}), tmp_path / "m.onnx", recipe(opset=23, target="cpu"))
    assert count(onnx.load(tmp_path / "m.onnx"))["PackedAttention"] == 1
    for values, expected in zip(
        InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy()}), module(x), strict=True
    ):
        agree(torch.tensor(values), expected, "model in float32", torch.float32)


@pytest.mark.parametrize("spec", [AttentionSpec("DistanceScores", mask="keys"), AttentionSpec(cache="append")])
def test_packed_attention_has_its_split_form(spec: AttentionSpec) -> None:
    packed = replace(spec, packed=True)
    assert packed.split == spec
    assert packed.name == f"Packed{spec.name}"


def test_bodies_that_need_heads_split_split_them() -> None:
    spec = AttentionSpec(mask="keys", packed=True)
    way = next(each for each in ATTENTION.lowerings if each.name == "formula")
    made = ir.serde.serialize_function(function(way, spec, Target("cpu", 23)).function)
    assert list(made.attribute) == ["split_heads", "split_kv_heads", "scale"]
    assert [node.op_type for node in made.node].count("Transpose") == 5  # q, k, v, k for the product, the context

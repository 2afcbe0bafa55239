"""Attention in other layouts than [B, H, T, S]: it is recognised, and right."""

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.recognise.layouts import put_in_order
from tests.in_float64 import is_the_module
from tests.small import TwoLayers, after_recognition, proven

V, D, H = 61, 20, 5
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
LENGTHS = (1, 7, 33)


class Model(TwoLayers):
    """A subclass says how it attends, q, k and v are [B, H, T, D]."""

    def __init__(self) -> None:
        super().__init__(D, gain=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


def dropped(mask: Tensor, like: Tensor) -> Tensor:
    """A mask [B, 1, 1, S] that is added to scores."""
    return (1 - mask[:, None, None].to(like.dtype)) * torch.finfo(like.dtype).min


class MultiQuery(Model):
    """Keys and values have no axis of heads, as in memorizing-transformers."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("b h i d, b j d -> b h i j", q * 0.5, k[:, 2]) + dropped(mask, q)
        return torch.einsum("b h i j, b j d -> b h i d", scores.softmax(-1), v[:, 2])


class OneHead(Model):
    """Keys and values have one head, as in curated-transformers' Falcon."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        seen = mask[:, None, None].bool() & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        scores = (q @ k[:, :1].mT / 2.0).where(seen, torch.finfo(q.dtype).min)
        return scores.softmax(-1) @ v[:, :1]


class LessHighest(Model):
    """Scores of five axes less the highest one, as in open-flamingo's resampler."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x.unsqueeze(2) for x in (q, k, v))
        scores = torch.einsum("... i d, ... j d -> ... i j", q * 0.5, k) + dropped(mask, q).unsqueeze(1)
        scores = scores - scores.amax(dim=-1, keepdim=True).detach()
        return torch.einsum("... i j, ... j d -> ... i d", scores.softmax(-1), v).squeeze(2)


class HeadsFirst(Model):
    """Scores are [H, B, T, S]."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        scores = (q @ k.mT * 0.5).masked_fill(mask[:, None] == 0, torch.finfo(q.dtype).min)
        return (scores.softmax(-1) @ v).transpose(0, 1)


class TwoBatches(Model):
    """Two axes of the batch and heads, [T, B, H, 1, D]: each token of its row attends to two of its neighbours."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        pair = [torch.stack([x, x.roll(1, 2)], -2).permute(2, 0, 1, 3, 4) for x in (k, v)]
        seen = torch.stack([mask, mask.roll(1, 1)], -1).transpose(0, 1)[:, :, None, None]  # [T, B, 1, 1, 2]
        scores = q.permute(2, 0, 1, 3).unsqueeze(-2) @ pair[0].mT
        scores = scores.masked_fill(seen == 0, torch.finfo(q.dtype).min)
        return (scores.softmax(-1) @ pair[1]).squeeze(-2).permute(1, 2, 0, 3)


class KeysFirst(Model):
    """[T, S, B, H] with a softmax over axis 1, as in the first XLNet."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
        scores = torch.einsum("ibnd,jbnd->ijbn", q, k) * 0.5
        scores = scores - 1e30 * (1 - mask.T[None, :, :, None].to(q.dtype))
        return torch.einsum("ijbn,jbnd->ibnd", scores.softmax(1), v).permute(1, 2, 0, 3)


class BothWays(Model):
    """One product for queries that attend to keys, and keys that attend to queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        pairs = (mask[:, None, :, None] * mask[:, None, None]) == 0
        scores = (torch.einsum("bhid,bhjd->bhij", q, k) * 0.5).masked_fill(pairs, torch.finfo(q.dtype).min)
        first = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
        return first + torch.einsum("bhij,bhid->bhjd", scores.softmax(-2), v)


class Zeroed(Model):
    """Probabilities of masked keys are set to 0, as in ESPnet: a query that sees no key reads zeros."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(0)  # the first query sees no key
        masked = (mask[:, None, None] == 0) | later
        scores = (q @ k.mT / 2.0).masked_fill(masked, torch.finfo(q.dtype).min)
        return scores.softmax(-1).masked_fill(masked, 0.0) @ v


class InAnotherShape(Model):
    """Biases are added to scores with more axes, as SAM does for rows and columns of an image."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        q, k, v = (x.reshape(batch * H, length, -1) for x in (q, k, v))
        of_keys = dropped(mask, q).expand(-1, H, -1, -1).reshape(-1, 1, 1, length, 1)
        of_queries = q.sum(-1).view(-1, length, 1, 1, 1) * torch.arange(length).view(length, 1) * 0.1
        scores = (q @ k.mT * 0.5).view(-1, length, 1, length, 1) + of_queries + of_keys
        return (scores.view(-1, length, length).softmax(-1) @ v).view(batch, H, length, -1)


class JoinedAgain(Model):
    """Heads in the batch, apart for the mask, and joined again, as in torchscale."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        at = torch.arange(length)
        bias = -(at - at[:, None]).abs() * torch.arange(1, H + 1)[:, None, None] * 0.3
        q, k, v = (x.reshape(batch * H, length, -1) for x in (q, k, v))
        scores = torch.bmm(q, k.mT).view(batch, H, length, length)
        scores = scores.masked_fill(mask[:, None, None] == 0, float("-inf")).view(batch * H, length, length)
        scores = scores + bias.repeat(batch, 1, 1).to(q.dtype)
        return torch.bmm(scores.softmax(-1), v).view(batch, H, length, -1)


class FiveAxes(Model):
    """F.scaled_dot_product_attention of [B, G, H, T, D] with a mask for each row, as in uni2ts."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, mask[:, None, None, None].bool()).squeeze(1)


#: nodes of a layer, and their heads
RECOGNISED: dict[type[Model], tuple[str, int]] = {
    MultiQuery: ("GroupedMaskedAttention", 1),
    OneHead: ("GroupedCausalMaskedAttention", 1),
    LessHighest: ("MaskedAttention", 1),
    HeadsFirst: ("MaskedAttention", 1),
    TwoBatches: ("MaskedAttention", 1),
    KeysFirst: ("MaskedAttention", 1),
    BothWays: ("PairMaskedAttention", 2),
    Zeroed: ("PairMaskedAttention", 1),
    InAnotherShape: ("PairMaskedAttention", 1),
    JoinedAgain: ("PairMaskedAttention", 1),
    FiveAxes: ("MaskedAttention", 1),
}


@pytest.mark.all(but=("KeysFirst-portable", "BothWays-cpu", "Zeroed-cpu", "TwoBatches-cpu"))
@pytest.mark.parametrize(
    ("model", "target"), [(model, target) for model in RECOGNISED for target in ("portable", "cpu", "cuda")]
)
def test_they_are_recognised_and_right(tmp_path: Path, model: type[Model], target: str) -> None:
    module = model().eval()
    manifest = proven(
        module, tmp_path / "b", target=target, lengths=LENGTHS, example_inputs=INPUTS, threads=1, task="features"
    ).manifest
    assert manifest.passes["recognised-attention"].nodes == 2 * RECOGNISED[model][1]
    if target != "cuda":
        is_the_module(tmp_path / "b", module, V, LENGTHS)


def traced(model: type[Model]) -> Counter[str]:
    """Names of the attention nodes, and a Softmax that is left."""
    graph, _ = after_recognition(model(), INPUTS, 18)
    names = Counter(spec.name for node in graph.graph if (spec := AttentionSpec.of(node)))
    return names + Counter(node.op_type for node in graph.graph if node.op_type == "Softmax")


@pytest.mark.all(but=("HeadsFirst", "InAnotherShape"))
@pytest.mark.parametrize("model", RECOGNISED)
def test_what_the_nodes_are(model: type[Model]) -> None:
    name, nodes = RECOGNISED[model]
    assert traced(model) == {name: 2 * nodes}


# -- no attention ------------------------------------------------------------------------------------


class OverChannels(Model):
    """Linear attention: a softmax over the channels of queries, and over the tokens of keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)


class OtherZeros(Model):
    """Probabilities are set to 0 where scores are not masked."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        nearest = torch.eye(q.shape[2], dtype=torch.bool)
        return (q @ k.mT * 0.5 + dropped(mask, q)).softmax(-1).masked_fill(nearest, 0.0) @ v


class ReadScores(Model):
    """The scores are read by something else, too."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.mT * 0.5 + dropped(mask, q)
        return scores.softmax(-1) @ v + scores.sigmoid() @ v


class ToSlots(Model):
    """A softmax over the tokens of a linear layer's output, as soft mixtures of experts have it."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(D // H, 3))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ self.slots
        return scores.softmax(-1) @ (scores.softmax(-2).mT @ v)


@pytest.mark.all(but=("OtherZeros", "ToSlots"))
@pytest.mark.parametrize("model", [OverChannels, OtherZeros, ReadScores, ToSlots])
def test_it_is_left_as_it_is(model: type[Model]) -> None:
    assert set(traced(model)) == {"Softmax"}


GRAPH = """<ir_version: 10, opset_import: ["" : 18]>
g (float[B, 3, T, 4] q, float[B, 3, 4, S] k, float[B, 3, S, 4] v, float[B, 1, 1, S] keys) => (float[B, 3, T, 4] y) {
"""
TRANSPOSED = """
  scores = MatMul(q, k)
  mask = Identity(keys)
  masked = Add(scores, mask)
  turned = Transpose<perm = [0, 3, 1, 2]>(masked)
  probs = Softmax<axis = 1>(turned)
  back = Transpose<perm = [0, 2, 3, 1]>(probs)
  y = MatMul(back, v)
}"""
PLAIN = "scores = MatMul(q, k) probs = Softmax<axis = -1>(scores) y = MatMul(probs, v) }"


def put(graph: str, unknown: str) -> list[str]:
    """The operators of ``graph`` in order, where the sizes of the value ``unknown`` are not known."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(GRAPH + graph)))
    for value in (node.outputs[0] for node in model.graph):
        value.shape = None if value.name == unknown else value.shape
    put_in_order(next(node for node in model.graph if node.op_type == "Softmax"))
    RemoveUnusedNodesPass()(model)
    return [node.op_type for node in model.graph]


def test_unknown_sizes_are_left_as_they_are() -> None:
    """As those behind a reshape that the exporter cannot follow."""
    assert "Transpose" not in put(TRANSPOSED, "")
    assert put(TRANSPOSED, "mask").count("Transpose") == 2
    assert put(PLAIN, "scores") == ["MatMul", "Softmax", "MatMul"]

"""Scores as users write them: subtracted biases, caps, scales of a head, heads in the batch. Recognised, and right."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from tests.in_float64 import is_the_module
from tests.small import TwoLayers, after_recognition, proven

V, D, H = 61, 20, 5
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
LENGTHS = (1, 7, 33)


class Model(TwoLayers):
    """A subclass says what the scores are."""

    def __init__(self) -> None:
        super().__init__(D, gain=2)
        self.of_heads = nn.Parameter(torch.linspace(-0.4, 1.6, H).view(H, 1, 1))

    def dropped(self, q: Tensor, mask: Tensor) -> Tensor:
        return (1 - mask[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return self.scores(q, k, self.dropped(q, mask)).softmax(-1) @ v

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        raise NotImplementedError


class Subtracted(Model):
    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        return (q @ k.mT - (at[:, None] - at).abs() * 0.7) * 0.5 - (-dropped)


class Capped(Model):
    """As in Gemma 2; the tangent is bent well within the scores."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return torch.tanh(q @ k.mT * 0.5 / 3.0) * 3.0 + dropped


class CappedOtherwise(Model):
    """Queries are scaled before, and the tangent is multiplied by another number than it divides by."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return 2.5 * torch.tanh((q * 0.3) @ k.mT) + dropped


class ScaledHeads(Model):
    """A learned scale of each head, one of them negative."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return q @ k.mT * self.of_heads + dropped


class Negative(Model):
    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return q @ k.mT * -0.5 + dropped


class Temperatures(Model):
    """Divided by a number of each head and query, before a cap."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        at = torch.arange(q.shape[2], dtype=q.dtype)[:, None]
        return torch.tanh(q @ k.mT / (self.of_heads.exp() + at / 7)) * 2 + dropped


class OfKeysAndHeads(Model):
    """A bias [1, H, 1, S], as MPT has it."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return q @ k.mT * 0.5 + self.of_heads * torch.arange(q.shape[2]) + dropped


class LargerBuffer(Model):
    """A causal buffer, cut to the length of the call; the trace calls that another size than the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("later", torch.ones(50, 50, dtype=torch.bool).triu(1), persistent=False)

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        length = q.shape[2]
        later: Tensor = self.later[:length, :length]  # type: ignore[index,assignment]
        return (q @ k.mT * 0.5).masked_fill(later, float("-inf")) + dropped


class HeadsInBatch(Model):
    """torch.bmm of [B * H, T, D]; the softmax is that of [B, H, T, S]."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        q, k, v = (x.reshape(batch * H, length, -1) for x in (q, k, v))
        scores = self.product(q, k, mask).view(batch, H, length, length) + self.dropped(q, mask)
        return torch.bmm(scores.softmax(-1).view(batch * H, length, length), v).view(batch, H, length, -1)

    def product(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return torch.bmm(q, k.mT) * 0.5


class HeadsInScores(HeadsInBatch):
    """The product with values has heads apart."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        scores = self.product(*(x.reshape(batch * H, length, -1) for x in (q, k)), mask)
        return (scores.view(batch, H, length, length) + self.dropped(q, mask)).softmax(-1) @ v


class HeadsInAll(HeadsInBatch):
    """The softmax is of [B * H, T, S], too."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        dropped = self.dropped(q, mask).expand(batch, H, 1, length).reshape(batch * H, 1, length)
        q, k, v = (x.reshape(batch * H, length, -1) for x in (q, k, v))
        scores = torch.baddbmm(dropped.expand(-1, length, -1), q, k.mT, alpha=0.5)
        return torch.bmm(scores.softmax(-1), v).view(batch, H, length, -1)


class Bloom(HeadsInBatch):
    """A bias of each head and key in the batch, of positions that the mask counts."""

    def product(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        at = ((mask.cumsum(-1) - 1) * mask)[:, None, None].to(q.dtype)
        bias = (self.of_heads * at).reshape(-1, 1, mask.shape[1])
        return bias.baddbmm(q, k.mT, beta=1.0, alpha=0.5)


RECOGNISED: dict[type[Model], str] = {
    Subtracted: "MaskedDistanceAttention",
    Capped: "MaskedSoftCapAttention",
    CappedOtherwise: "MaskedSoftCapAttention",
    ScaledHeads: "MaskedAttention",
    Negative: "MaskedAttention",
    Temperatures: "MaskedSoftCapAttention",
    OfKeysAndHeads: "PairMaskedAttention",
    LargerBuffer: "CausalMaskedAttention",
    HeadsInBatch: "MaskedAttention",
    HeadsInScores: "MaskedAttention",
    HeadsInAll: "MaskedAttention",
    Bloom: "PairMaskedAttention",
}


@pytest.mark.all(but=("Capped-portable", "Bloom-cpu"))
@pytest.mark.parametrize(
    ("model", "target"), [(model, target) for model in RECOGNISED for target in ("portable", "cpu", "cuda")]
)
def test_they_are_recognised_and_right(tmp_path: Path, model: type[Model], target: str) -> None:
    module = model().eval()
    manifest = proven(module, tmp_path / "b", target=target, lengths=LENGTHS, example_inputs=INPUTS, threads=1).manifest
    assert manifest.passes["recognised-attention"].nodes == 2
    if target != "cuda":
        is_the_module(tmp_path / "b", module, V, LENGTHS)


def traced(model: type[Model]) -> Counter[str]:
    """Names of the attention nodes, of all heads, and a Softmax that is left."""
    graph, _ = after_recognition(model(), INPUTS, 18)
    found = Counter(spec.name for node in graph.graph if (spec := AttentionSpec.of(node)))
    assert {node.attributes["heads"].value for node in graph.graph if AttentionSpec.of(node)} <= {H}
    return found + Counter(node.op_type for node in graph.graph if node.op_type == "Softmax")


@pytest.mark.all(but=("LargerBuffer",))
@pytest.mark.parametrize("model", RECOGNISED)
def test_what_the_nodes_are(model: type[Model]) -> None:
    assert traced(model) == {RECOGNISED[model]: 2}


# -- nearly so ---------------------------------------------------------------------------------------


class SubtractedFrom(Model):
    """The scores are subtracted from a mask."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return dropped - q @ k.mT * 0.5


class CappedMask(Model):
    """The cap bounds the mask, too, so that padding keeps a weight."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return torch.tanh((q @ k.mT * 0.5 + dropped) / 3.0) * 3.0


class ScaledMask(Model):
    """A head of a negative scale keeps what the mask drops."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return (q @ k.mT + dropped.clamp(min=-1e9)) * self.of_heads


class ScaledKeys(Model):
    """A scale of keys is none of queries."""

    def scores(self, q: Tensor, k: Tensor, dropped: Tensor) -> Tensor:
        return q @ k.mT * (torch.arange(q.shape[2]) + 2.0).log() + dropped


class HeadsFirst(HeadsInBatch):
    """Heads before rows in the batch of the product."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        q, k, v = (x.transpose(0, 1).reshape(batch * H, length, -1) for x in (q, k, v))
        scores = self.product(q, k, mask).view(H, batch, length, length) + self.dropped(q, mask).transpose(0, 1)
        y = torch.bmm(scores.softmax(-1).view(batch * H, length, length), v).view(H, batch, length, -1)
        return y.transpose(0, 1)


@pytest.mark.all(but=("HeadsFirst",))
@pytest.mark.parametrize("model", [SubtractedFrom, CappedMask, ScaledMask, ScaledKeys, HeadsFirst])
def test_what_is_nearly_so_is_left(model: type[Model]) -> None:
    assert traced(model) == {"Softmax": 2}


@pytest.mark.all
@pytest.mark.parametrize("model", [CappedMask, HeadsFirst])
def test_what_is_left_is_right(tmp_path: Path, model: type[Model]) -> None:
    module = model().eval()
    proven(module, tmp_path / "b", lengths=LENGTHS, example_inputs=INPUTS, threads=1)
    is_the_module(tmp_path / "b", module, V, LENGTHS)

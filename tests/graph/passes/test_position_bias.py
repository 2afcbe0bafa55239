"""A bias of positions alone as users write it: ours where it is an encoding's, computed once; else left, and right."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.biases import slopes
from posexport.graph.passes.graph_pass import PassResult
from posexport.graph.passes.recognise import known_bias
from tests.small import after_recognition, in_short, proven

V, D, H = 17, 24, 3
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class Model(nn.Module):
    """Two layers, each of which computes ALiBi from arange and adds it to its mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.table = nn.Embedding(32, H)
        self.register_buffer("slopes", torch.tensor(slopes(H)), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.token(input_ids)
        dropped = (1 - attention_mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        for qkv in self.qkv:
            q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            x = x + self.attention(q, k, v, dropped).transpose(1, 2).flatten(2)
        return x  # type: ignore[no-any-return]

    def attention(self, q: Tensor, k: Tensor, v: Tensor, dropped: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(q.shape[2]) + dropped)

    def bias(self, length: int) -> Tensor:
        return -self.slopes.view(-1, 1, 1) * self.distance(length).abs()  # type: ignore[operator]

    def distance(self, length: int) -> Tensor:
        at = torch.arange(length)
        return at[None] - at[:, None]


class ByHand(Model):
    """Added to the scores, behind their scale."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, dropped: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(D // H) + self.bias(q.shape[2])[None]
        return scores.masked_fill(dropped < 0, torch.finfo(q.dtype).min).softmax(-1) @ v


class Causal(Model):
    """The penalty of a decoder, with its mask."""

    def bias(self, length: int) -> Tensor:
        distance = self.distance(length)
        bias = self.slopes.view(-1, 1, 1) * distance  # type: ignore[operator]
        return bias.masked_fill(distance > 0, float("-inf"))


class Causal32(Causal):
    """The causal mask is added on its own."""

    def bias(self, length: int) -> Tensor:
        distance = self.distance(length)
        return self.slopes.view(-1, 1, 1) * distance + torch.full((length, length), float("-inf")).triu(1)  # type: ignore[operator]


class T5(Model):
    """The buckets of T5's released code."""

    two_sided = True

    def bias(self, length: int) -> Tensor:
        return self.table(self.bucket(self.distance(length))).permute(2, 0, 1)[None]  # type: ignore[no-any-return]

    def bucket(self, relative: Tensor) -> Tensor:
        count = 32
        if self.two_sided:
            count //= 2
            start, n = (relative > 0).long() * count, relative.abs()
        else:
            start, n = torch.zeros_like(relative), (-relative).clamp(min=0)
        exact = count // 2
        far = exact + (torch.log(n.float() / exact) / math.log(self.longest() / exact) * (count - exact)).long()
        return start + torch.where(n < exact, n, far.clamp(max=count - 1))

    def longest(self) -> int:
        return 128


class T5OneSided(T5):
    two_sided = False


class T5Far(T5):
    def longest(self) -> int:
        return 200


RECOGNISED: dict[type[Model], str] = {
    Model: "ALiBi (slopes 0.25 to 0.00391 of 3 heads, symmetric)",
    ByHand: "ALiBi (slopes 0.25 to 0.00391 of 3 heads, symmetric)",
    Causal: "ALiBi (slopes 0.25 to 0.00391 of 3 heads, causal)",
    Causal32: "ALiBi (slopes 0.25 to 0.00391 of 3 heads, causal)",
    T5: "T5 buckets (32, 128, bidirectional)",
    T5OneSided: "T5 buckets (32, 128, one-sided)",
    T5Far: "T5 buckets (32, 200, bidirectional)",
}


def traced(model: Model) -> tuple[list[AttentionSpec], PassResult]:
    graph, results = after_recognition(model, INPUTS, 23)
    return [spec for node in graph.graph if (spec := AttentionSpec.of(node))], results["position-bias"]


@pytest.mark.all
@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda model: model is T5OneSided))
def test_it_is_a_term(model: type[Model]) -> None:
    specs, result = traced(model())
    assert result.recognised == (RECOGNISED[model],)
    assert [spec.scores for spec in specs] == ["DistanceScores"] * 2
    assert [spec.causal for spec in specs] == [issubclass(model, Causal)] * 2
    assert {spec.mask for spec in specs} == {"keys"}


@pytest.mark.parametrize("model", [T5, T5OneSided, T5Far])
def test_settings_of_buckets_follow_from_their_rows(model: type[T5]) -> None:
    """The numbers of buckets by distance, query minus key, from 1 - far to far - 1."""
    far, t5 = 300, model()
    rows = t5.bucket(-torch.arange(1 - far, far)).numpy()
    known = known_bias._settings(rows, 32, far)
    assert known == (t5.longest(), t5.two_sided)
    rows[far + 9] += 1  # distance 10
    assert known_bias._settings(rows, 32, far) is None


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda _model: False))
def test_it_is_computed_once_and_right(tmp_path: Path, model: type[Model], target: str) -> None:
    manifest = proven(model(), tmp_path / "b", target=target, lengths=(1, 17, 150), example_inputs=INPUTS).manifest
    assert manifest.passes["position-bias"].recognised == [RECOGNISED[model]]
    assert manifest.passes["shared-bias"].nodes == 2


class Alone(Model):
    """[H, T, T] is all of its mask, so no batch axis says which queries see a key."""

    def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids, torch.ones_like(input_ids))

    def attention(self, q: Tensor, k: Tensor, v: Tensor, dropped: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(q.shape[2]))


def test_a_mask_that_is_a_bias_alone(tmp_path: Path) -> None:
    manifest = proven(Alone(), tmp_path / "b", lengths=(1, 17), example_inputs={"input_ids": IDS}).manifest
    assert manifest.passes["position-bias"].recognised == [RECOGNISED[Model]]


# -- nearly so ---------------------------------------------------------------------------------------


class WrongSlope(Model):
    """One head's is another."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes[1] *= 1.001  # type: ignore[index,operator]


class LateBucket(T5):
    """One bucket begins a token later, beyond 64."""

    def bucket(self, relative: Tensor) -> Tensor:
        return super().bucket(torch.where(relative.abs() == 91, relative - relative.sign(), relative))


class OtherSide(T5):
    """Tokens before the query have the second half of the buckets."""

    def distance(self, length: int) -> Tensor:
        return -super().distance(length)


class ByRow(Model):
    """A bias by the query, not by the distance."""

    def bias(self, length: int) -> Tensor:
        return super().bias(length) * (torch.arange(length)[:, None] < 100)


NOT_OURS = (WrongSlope, LateBucket, OtherSide, ByRow)


@pytest.mark.all
@pytest.mark.parametrize("model", in_short(NOT_OURS, lambda model: model is WrongSlope))
def test_what_is_nearly_so_is_left(model: type[Model]) -> None:
    specs, result = traced(model())
    # by its numbers, which depend on the distance (`distance-bias`)
    assert [spec.scores for spec in specs] == [None if model is ByRow else "DistanceScores"] * 2
    assert result.nodes == 0
    assert ["none of our encodings" in reason for reason in result.rejected] == [True]


@pytest.mark.parametrize("model", in_short(NOT_OURS, lambda _model: False))
def test_what_is_left_is_right(tmp_path: Path, model: type[Model]) -> None:
    proven(model(), tmp_path / "b", target="cpu", lengths=(1, 17, 150), example_inputs=INPUTS)

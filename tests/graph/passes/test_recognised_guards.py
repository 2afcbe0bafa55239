"""NaN of queries without keys become zeros, as modules write it; also of values with channels first."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import PassResult
from tests.in_float64 import is_the_module
from tests.small import after_recognition, proven

V, C, H = 61, 20, 5
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
#: scores [B, H, T, S] and where they are masked, q, k and v [B, H, T, D] -> the context
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Layers(nn.Module):
    """A residual layer for each way to attend; the first query sees no key, and scores are large."""

    def __init__(self, *ways: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ways, self.token = ways, nn.Embedding(V, C)
        self.qkv, self.out = (nn.ModuleList(nn.Linear(C, size) for _ in ways) for size in (3 * C, C))
        for layer in self.qkv:
            layer.weight.data *= 4

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = first = self.token(input_ids)
        length = input_ids.shape[1]
        masked = (attention_mask[:, None, None] == 0) | torch.ones(length, length, dtype=torch.bool).triu(0)
        for way, qkv, out in zip(self.ways, self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in qkv(first).chunk(3, -1))
            x = x + out(way(q, k, v, masked).transpose(1, 2).flatten(2))
        return x


def probabilities(q: Tensor, k: Tensor, masked: Tensor) -> Tensor:
    return (q @ k.mT / 2).masked_fill(masked, -torch.inf).softmax(-1)


def nan_to_num(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    return torch.nan_to_num(probabilities(q, k, masked)) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    probs = probabilities(q, k, masked)
    return probs.masked_fill(probs.isnan(), 0.0) @ v


def unequal(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    probs = probabilities(q, k, masked)
    return torch.where(probs != probs, torch.zeros_like(probs), probs) @ v


def put(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    probs = probabilities(q, k, masked)
    probs[probs.isnan()] = 0
    return probs @ v


def any_key(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    probs = probabilities(q, k, masked)
    return torch.where((~masked).any(-1, keepdim=True), probs, torch.zeros_like(probs)) @ v


def all_masked(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    return probabilities(q, k, masked).masked_fill(masked.all(-1, keepdim=True), 0.0) @ v


def added(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """A mask of -inf and zeros, and another bias."""
    at = torch.arange(q.shape[2])
    mask = torch.zeros(masked.shape, dtype=q.dtype).masked_fill(masked, -torch.inf)
    scores = q @ k.mT / 2 + (at - at[:, None]).abs().to(q.dtype).sqrt() + mask
    return scores.softmax(-1).nan_to_num(0.0) @ v


def in_the_batch(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """Heads in the batch, as in torchscale."""
    batch, _, length, _ = q.shape
    q, k, v = (x.reshape(batch * H, length, -1) for x in (q, k, v))
    scores = torch.bmm(q, k.mT).view(batch, H, length, length).masked_fill(masked, -torch.inf)
    probs = torch.nan_to_num(scores.view(batch * H, length, length).softmax(-1))
    return torch.bmm(probs, v).view(batch, H, length, -1)


def keys_first(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """[S, T, B, H], as in the first XLNet."""
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    scores = torch.einsum("ibnd,jbnd->jibn", q, k).masked_fill(masked.permute(3, 2, 0, 1), -torch.inf)
    return torch.einsum("jibn,jbnd->ibnd", scores.softmax(0).nan_to_num(), v).permute(1, 2, 0, 3)


def channels_first(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """``v @ attn.transpose(-2, -1)`` of [B, H, D, T]."""
    q, k, v = q.mT, k.mT, v.mT
    scores = (q.mT @ k / 2).masked_fill(masked, -torch.inf)
    return (v @ scores.softmax(-1).nan_to_num().mT).mT


def queries_last(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """``v @ attn`` with scores [S, T]."""
    q, k, v = q.mT, k.mT, v.mT
    scores = (k.mT @ q / 2).masked_fill(masked.mT, -torch.inf)
    return (v @ scores.softmax(-2).nan_to_num()).mT


RECOGNISED = (
    nan_to_num,
    filled,
    unequal,
    put,
    any_key,
    all_masked,
    added,
    in_the_batch,
    keys_first,
    channels_first,
    queries_last,
)


def replaced_by_more(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    return probabilities(q, k, masked).nan_to_num(0.01) @ v


def of_another(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """The NaN that are replaced are those of other probabilities."""
    probs, other = probabilities(q, k, masked), probabilities(k, q, masked.flip(-1))
    return torch.where(other.isnan(), 0.0, probs.nan_to_num()) @ v


def read_too(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """Something else reads the probabilities."""
    probs = probabilities(q, k, masked)
    return torch.where(probs.isnan(), 0.0, probs) @ v + probs.nan_to_num().amax((1, 3))[:, None, :, None]


def filled_twice(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """A number in place of some scores that are -inf."""
    scores = (q @ k.mT / 2).masked_fill(masked, -torch.inf)
    scores = scores.masked_fill(torch.eye(q.shape[2], dtype=torch.bool), -1e9)
    return scores.softmax(-1).nan_to_num() @ v


def not_transposed(q: Tensor, k: Tensor, v: Tensor, masked: Tensor) -> Tensor:
    """``v @ attn``: a sum over queries."""
    q, k, v = q.mT, k.mT, v.mT
    return (v @ (q.mT @ k).masked_fill(masked, torch.finfo(q.dtype).min).softmax(-1)).mT


LEFT = (replaced_by_more, of_another, read_too, filled_twice, not_transposed)


def traced(*ways: Attend) -> tuple[Counter[str], PassResult]:
    """Names of the attention nodes, with each Softmax that is left; and what the pass reports."""
    graph, results = after_recognition(Layers(*ways), INPUTS, 18)
    said = results["recognised-attention"]
    names = Counter("attention" for node in graph.graph if AttentionSpec.of(node))
    return names + Counter(node.op_type for node in graph.graph if node.op_type in ("Softmax", "IsNaN")), said


def test_two_ways_are_recognised() -> None:
    assert traced(nan_to_num, channels_first)[0] == {"attention": 2}


@pytest.mark.all
def test_each_way_is_recognised() -> None:
    assert traced(*RECOGNISED)[0] == {"attention": len(RECOGNISED)}


def test_two_that_are_nearly_so_are_left() -> None:
    assert traced(filled_twice, not_transposed)[0] == {"Softmax": 2, "IsNaN": 1}


@pytest.mark.all
def test_what_is_nearly_so_is_left() -> None:
    names, said = traced(*LEFT)
    assert names["Softmax"] == len(LEFT) + 1  # two of `of_another`
    assert names["attention"] == 0
    assert any("fills in a number" in reason for reason in said.rejected)


@pytest.mark.all
@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("ways", [RECOGNISED, LEFT], ids=["recognised", "left"])
def test_they_are_right_at_every_length(tmp_path: Path, ways: tuple[Attend, ...], target: str) -> None:
    module, lengths = Layers(*ways).eval(), (1, 7, 33)
    proven(module, tmp_path / "b", target=target, lengths=lengths, example_inputs=INPUTS, threads=1, task="features")
    is_the_module(tmp_path / "b", module, V, (1, 2, 7, 13, 33))


class TalkingHeads(nn.Module):
    """A layer of CaiT: heads are mixed before and after the softmax; then its class attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.before, self.after = nn.Linear(C, 3 * C), nn.Linear(H, H), nn.Linear(H, H)
        self.q, self.kv = nn.Linear(C, C), nn.Linear(C, 2 * C)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = self.before((q * 0.5 @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        probs = self.after(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x + (probs @ v).transpose(1, 2).flatten(2)
        q = self.q(x[:, 0]).unsqueeze(1).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        return ((q * 0.5 @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(1)


def test_class_attention_is_recognised_and_mixed_heads_are_named() -> None:
    _, results = after_recognition(TalkingHeads(), {"x": torch.randn(2, 11, C)}, 18)
    said = results["recognised-attention"]
    assert (said.nodes, [reason for reason in said.rejected if "talking heads" in reason]) == (1, [*said.rejected])

"""Windows and biases by distance as users write them: numbers by distance where they are, else left; and right."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import PassResult
from posexport.graph.queries import sizes
from tests.in_float64 import is_the_module
from tests.small import after_recognition, in_short, proven

V, D, H = 61, 20, 5
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
LENGTHS = (1, 3, 33)
ROWS = 31


class Model(nn.Module):
    """Two layers; a subclass says how they attend."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.table = nn.Embedding(V, D), nn.Embedding(ROWS, H)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.slopes = nn.Parameter(torch.tensor([0.3, 0.21, 0.1, 0.7, 0.05]).view(H, 1, 1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x: Tensor = self.token(input_ids)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            x = x + out(self.attend(q, k, v, attention_mask[:, None, None]).transpose(1, 2).flatten(2))
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """By hand, with ``bias``."""
        dropped = (1 - mask.to(q.dtype)) * torch.finfo(q.dtype).min
        return (q @ k.mT * 0.5 + self.bias(q.shape[2]).to(q.dtype) + dropped).softmax(-1) @ v

    def bias(self, length: int) -> Tensor:
        raise NotImplementedError

    def distance(self, length: int) -> Tensor:
        """i - j."""
        at = torch.arange(length)
        return at[:, None] - at


class Window(Model):
    """Both sides, by masked_fill."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT * 0.5).masked_fill(self.distance(q.shape[2]).abs() > 3, -1e9)
        return scores.masked_fill(mask == 0, torch.finfo(q.dtype).min).softmax(-1) @ v


class CausalWindow(Model):
    """A bool mask with padding, as Mistral's."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        distance = self.distance(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, (distance >= 0) & (distance < 4) & mask.bool())


class Triangles(Model):
    """A causal window of triangles."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        pairs = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, mask.bool() & ~(pairs.triu(1) | pairs.tril(-5)))


class Strided(Model):
    """Every third key, and one on either side."""

    def bias(self, length: int) -> Tensor:
        distance = self.distance(length)
        return torch.where((distance % 3 == 0) | (distance.abs() <= 1), 0.0, float("-inf"))


class Logarithms(Model):
    """Of no encoding's slopes; a Sub."""

    def bias(self, length: int) -> Tensor:
        return -self.slopes * torch.log1p(self.distance(length).abs().to(self.slopes.dtype))


class Sided(Model):
    """Other numbers before the query than behind it."""

    def bias(self, length: int) -> Tensor:
        distance = self.distance(length)
        return torch.where(distance < 0, distance * self.slopes, distance.sqrt() * -0.3)


class Table(Model):
    def bias(self, length: int) -> Tensor:
        rows: Tensor = self.table(self.distance(length).clamp(-(ROWS // 2), ROWS // 2) + ROWS // 2)
        return rows.permute(2, 0, 1)[None]


class OfKeys(Model):
    """Causal, with a bias of each key that a softmax sees as one by distance: MPT's form."""

    def bias(self, length: int) -> Tensor:
        later = torch.full((length, length), float("-inf")).triu(1)
        return self.slopes * torch.arange(1 - length, 1) + later


class Capped(Model):
    """Gemma 2's layers: a cap and a window."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores, distance = torch.tanh(q @ k.mT / 4) * 2, self.distance(q.shape[2])
        scores = scores.masked_fill(~((distance >= 0) & (distance < 4)), -1e9)
        return scores.masked_fill(mask == 0, -1e9).softmax(-1) @ v


RECOGNISED: dict[type[Model], tuple[str, str]] = {
    Window: ("MaskedDistanceAttention", "window of distances -3 to 3"),
    CausalWindow: ("CausalMaskedDistanceAttention", "window of distances 0 to 3"),
    Triangles: ("CausalMaskedDistanceAttention", "window of distances 0 to 4"),
    Strided: ("MaskedDistanceAttention", "window of distances -1023 to 1023"),
    Logarithms: ("MaskedDistanceAttention", "bias by distance of 5 heads"),
    Sided: ("MaskedDistanceAttention", "bias by distance of 5 heads"),
    Table: ("MaskedDistanceAttention", "bias by distance of 5 heads"),
    OfKeys: ("CausalMaskedDistanceAttention", "bias by distance of 5 heads, causal"),
    Capped: ("CausalMaskedSoftCapDistanceAttention", "window of distances 0 to 3"),
}


def traced(model: type[Model]) -> tuple[list[AttentionSpec], PassResult, bool]:
    """Attention nodes, what was said of their masks, and whether anything of pairs of tokens is left in the graph."""
    graph, results = after_recognition(model(), INPUTS, 18)
    pairs = [x for node in graph.graph for x in node.outputs if (sizes(x) or ())[-2:] == ("sequence_length",) * 2]
    return [spec for node in graph.graph if (spec := AttentionSpec.of(node))], results["distance-bias"], bool(pairs)


@pytest.mark.all(but=("Logarithms",))
@pytest.mark.parametrize("model", RECOGNISED)
def test_they_are_numbers_by_distance(model: type[Model]) -> None:
    specs, result, pairs = traced(model)
    name, recognised = RECOGNISED[model]
    assert [spec.name for spec in specs] == [name] * 2
    assert result == PassResult(2, (), (recognised,))
    # triangles are cut after they are made; queries that see no key read zeros, which PyTorch's function finds by pairs
    assert pairs is (model in (CausalWindow, Triangles, OfKeys))


_SHORT = {(CausalWindow, "cpu"), (Sided, "portable"), (Capped, "cpu")}


@pytest.mark.all(but=("CausalWindow-cpu", "Sided-portable"))
@pytest.mark.parametrize(
    ("model", "target"),
    in_short(
        [(model, target) for model in RECOGNISED for target in ("portable", "cpu", "cuda")],
        lambda *pair: pair in _SHORT,
    ),
)
def test_they_are_right(tmp_path: Path, model: type[Model], target: str) -> None:
    module = model().eval()
    manifest = proven(module, tmp_path / "b", target=target, lengths=LENGTHS, example_inputs=INPUTS, threads=1).manifest
    assert manifest.passes["distance-bias"].nodes == 2
    if target != "cuda":
        is_the_module(tmp_path / "b", module, V, (*LENGTHS, 150))


# -- nearly so ---------------------------------------------------------------------------------------


class ByRow(Logarithms):
    """Queries from 100 on have none."""

    def bias(self, length: int) -> Tensor:
        return super().bias(length) * (torch.arange(length)[:, None] < 100)


class Products(Model):
    """Of i * j, which for short inputs differs little."""

    def bias(self, length: int) -> Tensor:
        at = torch.arange(length)
        return -self.slopes * at[:, None] * at * 1e-6


class OfLength(Logarithms):
    """Times the logarithm of the length: each length has other numbers."""

    def bias(self, length: int) -> Tensor:
        return super().bias(length) * torch.log(torch.ones(length).sum() + 1)


class Wide(Model):
    """A window that no length shows that is looked at, and that is not computed pair by pair."""

    def bias(self, length: int) -> Tensor:
        return torch.where(torch.ones(length, length).tril(2999).triu(-2999) > 0, 0.0, -1e9)


class NotItself(Model):
    """Drops the query's own key."""

    def bias(self, length: int) -> Tensor:
        return torch.where((self.distance(length) == 0) & (torch.arange(length) > 0), -1e9, 0.0)


class Blocks(Model):
    """Tokens of the same block of 4 see each other."""

    def bias(self, length: int) -> Tensor:
        block = torch.arange(length) // 4
        return torch.where(block[:, None] == block, 0.0, -1e9)


NOT_OURS: dict[type[Model], str] = {
    ByRow: "depends on more than the distance",
    Products: "depends on more than the distance",
    OfLength: "depends on more than the distance",
    Wide: "a number or a table beyond the 1024 tokens that were looked at",
    NotItself: "drops a query's own key",
    Blocks: "depends on more than the distance",
}


@pytest.mark.all(but=("Wide",))
@pytest.mark.parametrize("model", NOT_OURS)
def test_what_is_nearly_so_is_left(model: type[Model]) -> None:
    specs, result, _ = traced(model)
    assert [spec.name for spec in specs] == ["PairMaskedAttention"] * 2
    assert result.nodes == 0
    assert [NOT_OURS[model] in reason for reason in result.rejected] == [True]


@pytest.mark.all
@pytest.mark.parametrize("model", NOT_OURS)
def test_what_is_left_is_right(tmp_path: Path, model: type[Model]) -> None:
    module = model().eval()
    proven(module, tmp_path / "b", target="cpu", lengths=LENGTHS, example_inputs=INPUTS, threads=1)
    is_the_module(tmp_path / "b", module, V, (*LENGTHS, 150))

"""Scores by distance and joint projections as users write them: recognised where they are ours, else left right."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from posexport.base.targets.target import Target
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context, PassResult
from tests.small import after_recognition, in_short, proven

V, D, H, END = 17, 24, 3, 13
IDS = torch.arange(22).reshape(2, 11) % V
MASK = torch.ones_like(IDS)
INPUTS = {"input_ids": IDS, "attention_mask": MASK}


def distance(length: int) -> Tensor:
    """i - j."""
    at = torch.arange(length)
    return at.view(-1, 1) - at.view(1, -1)


class Model(nn.Module):
    """Two layers by hand, each with a table; a subclass says what is added to the scores."""

    rows = 2 * END - 1

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.tables = nn.ModuleList(nn.Embedding(self.rows, D // H) for _ in range(2))

    def heads(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        return tuple(y.view(batch, length, H, D // H).permute(0, 2, 1, 3) for y in layer(x).split(D, -1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.token(input_ids)
        dropped = (1 - attention_mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        for qkv, out, table in zip(self.qkv, self.out, self.tables, strict=True):
            q, k, v = self.heads(qkv, x)
            context = (self.scores(q, k, table) + dropped).softmax(-1) @ v
            x = x + out(context.transpose(1, 2).flatten(2))
        return x

    def scores(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return (q @ k.mT + self.added(q, k, table)) / math.sqrt(D // H)

    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return torch.einsum("bhld,lrd->bhlr", q, table(self.index(q.shape[2])).to(q.dtype))

    def index(self, length: int) -> Tensor:
        return distance(length) + END - 1


class Key(Model):
    """relative_key, as transformers has it."""


class KeyQuery(Model):
    """relative_key_query, as transformers has it."""

    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        rows = table(self.index(q.shape[2]))
        return torch.einsum("bhld,lrd->bhlr", q, rows) + torch.einsum("bhrd,lrd->bhlr", k, rows)


class Shaw(Model):
    """j - i, clipped far below the length, by a product of [T, B * H, D]."""

    rows = 9

    def index(self, length: int) -> Tensor:
        return (-distance(length)).clamp(-4, 4) + 4

    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        batch, heads, length, size = q.shape
        rows = table.weight[self.index(length)]
        product = q.permute(2, 0, 1, 3).reshape(length, batch * heads, size) @ rows.mT
        return product.reshape(length, batch, heads, length).permute(1, 2, 0, 3)


class ClippedKey(Shaw):
    """i - j, clipped."""

    def index(self, length: int) -> Tensor:
        return distance(length).clamp(-4, 4) + 4


class ScaledBefore(Model):
    """Queries are scaled once, for both products."""

    def scores(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        q = q * 0.3
        return q @ k.mT + self.added(q, k, table)


RECOGNISED: dict[type[Model], str] = {
    Key: "RelativeKeyScores",
    KeyQuery: "RelativeKeyQueryScores",
    Shaw: "ClippedScores",
    ClippedKey: "RelativeKeyScores",
    ScaledBefore: "RelativeKeyScores",
}


def traced(model: Model) -> tuple[Counter[str | None], dict[str, PassResult]]:
    """What attention nodes of a traced model add, and what was said of them."""
    graph, results = after_recognition(model, INPUTS, 23)
    return Counter(spec.scores for node in graph.graph if (spec := AttentionSpec.of(node))), results


@pytest.mark.all(but=("KeyQuery",))
@pytest.mark.parametrize("model", RECOGNISED)
def test_scores_by_distance_are_ours(model: type[Model]) -> None:
    found, results = traced(model())
    assert found == {RECOGNISED[model]: 2}
    assert not results["recognised-attention"].rejected


@pytest.mark.all
@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda model: model in (Key, Shaw)))
def test_they_are_right_up_to_the_end_and_around_it(tmp_path: Path, model: type[Model], target: str) -> None:
    limited = model().index(END)[0, 0] == END - 1
    lengths = (1, 2, END - 1, END) if limited else (1, 4, 5, 6, 17)
    manifest = proven(model(), tmp_path / "b", target=target, lengths=lengths, example_inputs=INPUTS).manifest
    name = RECOGNISED[model].removesuffix("Scores")
    # attention that leaves padding out is there for a row too
    attention = sum(each.nodes for kind, each in manifest.lowerings.items() if name in kind)
    assert attention == 2 + manifest.passes["unpadding"].nodes
    session = ort.InferenceSession(str(tmp_path / "b" / "model.onnx"))
    beyond = {"input_ids": np.ones((1, END + 1), np.int64), "attention_mask": np.ones((1, END + 1), np.int64)}
    if limited:
        with pytest.raises(Exception, match=f"longer than {END} positions"):
            session.run(None, beyond)
    else:
        session.run(None, beyond)


# -- nearly so ---------------------------------------------------------------------------------------


class OffByOne(Model):
    """Its middle row is not the distance 0."""

    rows = 2 * END + 1


class LateClip(Model):
    """Its clip is one short of the table's end, which only inputs of that length show."""

    def index(self, length: int) -> Tensor:
        return distance(length).clamp(-END + 2, END - 1) + END - 1


class Permuted(Model):
    def index(self, length: int) -> Tensor:
        return (distance(length) + END - 1) * 2 % self.rows


class Sides(Model):
    def index(self, length: int) -> Tensor:
        return distance(length).abs() + END - 1


class OfOtherTokens(Model):
    """Keys' tokens pick the queries."""

    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return torch.einsum("bhrd,lrd->bhlr", q, table(self.index(q.shape[2])))


class KeysAlone(Model):
    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return torch.einsum("bhrd,lrd->bhlr", k, table(self.index(q.shape[2])))


class OtherScale(Model):
    """What is added is not scaled as the product is."""

    def scores(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return q @ k.mT / math.sqrt(D // H) + self.added(q, k, table)


class OppositeKeys(Model):
    """Keys meet the opposite distance."""

    def added(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        of_keys = torch.einsum("bhrd,rld->bhlr", k, table(self.index(q.shape[2])))
        return super().added(q, k, table) + of_keys


@pytest.mark.all
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (OffByOne, "are not those of the distances"),
        (LateClip, "are not those of the distances"),
        (Permuted, "are not those of the distances"),
        (Sides, "are not those of the distances"),
        (OfOtherTokens, "is no product with rows of a table by distance"),
        (KeysAlone, "is no product with rows of a table by distance"),
        (OtherScale, "is no product with rows of a table by distance"),
        (OppositeKeys, "is no product with rows of a table by distance"),
    ],
)
def test_what_is_nearly_so_is_left(model: type[Model], reason: str) -> None:
    found, results = traced(model())
    assert set(found) <= {None}
    assert any(reason in rejected for rejected in results["recognised-attention"].rejected)


@pytest.mark.all
def test_what_is_left_as_a_mask_is_right(tmp_path: Path) -> None:
    proven(OtherScale(), tmp_path / "b", target="cpu", lengths=(1, END), example_inputs=INPUTS)


# -- queries, keys and values of one projection -------------------------------------------------------

Spelling = Callable[[Tensor], tuple[Tensor, ...]]


def image_layers(y: Tensor) -> tuple[Tensor, ...]:
    return y.reshape(*y.shape[:2], 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)


def by_index(y: Tensor) -> tuple[Tensor, ...]:
    y = y.reshape(*y.shape[:2], 3, H, D // H).permute(2, 0, 3, 1, 4)
    return y[0], y[1], y[2]


def unbound(y: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in y.unflatten(-1, (3, H, D // H)).unbind(2))


def of_each_head(y: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in y.view(*y.shape[:2], H, -1).chunk(3, -1))


def in_turn(y: Tensor) -> tuple[Tensor, ...]:
    """Channels of queries, keys and values in turn, heads last."""
    return y.view(*y.shape[:2], D // H, H, 3).permute(4, 0, 3, 1, 2).unbind(0)


def slices(y: Tensor) -> tuple[Tensor, ...]:
    return tuple(y[..., D * n : D * n + D].unflatten(-1, (H, -1)).transpose(1, 2) for n in range(3))


SPELLINGS: list[Spelling] = [image_layers, by_index, unbound, of_each_head, in_turn, slices]


class Joint(Model):
    def __init__(self, spelling: Spelling) -> None:
        super().__init__()
        self.spelling = spelling

    def heads(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return self.spelling(layer(x))

    def scores(self, q: Tensor, k: Tensor, table: nn.Embedding) -> Tensor:
        return q @ k.mT * 0.3


class ReadTwice(Joint):
    def heads(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        y = layer(x)
        q, k, v = self.spelling(y)
        return q, k, v + y.mean()


def passes(model: Model, target: Target) -> dict[str, PassResult]:
    graph, _ = after_recognition(model, INPUTS, 23)
    return pipeline.run(graph, Context(target))


@pytest.mark.all
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_joint_projections_pack(spelling: Spelling) -> None:
    done = passes(Joint(spelling), Target("cpu", 23))
    assert done["separate-projections"].nodes == done["packed-heads"].nodes == 2


@pytest.mark.all
@pytest.mark.parametrize("spelling", in_short(SPELLINGS, lambda spelling: spelling in (image_layers, in_turn)))
def test_their_values_are_right(spelling: Spelling, tmp_path: Path) -> None:
    proven(Joint(spelling), tmp_path / "b", target="cpu", lengths=(1, 17), example_inputs=INPUTS)


@pytest.mark.all
def test_a_projection_that_is_read_elsewhere_stays() -> None:
    done = passes(ReadTwice(image_layers), Target("cpu", 23))["separate-projections"]
    assert (done.nodes, ["not by attention alone" in each for each in done.rejected]) == (0, [True])


@pytest.mark.all
def test_a_portable_graph_keeps_the_weights() -> None:
    done = passes(Joint(image_layers), Target("portable", 23))["separate-projections"]
    assert (done.nodes, ["keeps the weights as the source has them" in each for each in done.rejected]) == (0, [True])


# -- weights that the graph splits ---------------------------------------------------------------------


class Across(nn.Module):
    """Attention to other tokens, whose three weights are parts of one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.attention = nn.Embedding(V, D), nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, input_ids: Tensor, memory: Tensor) -> Tensor:
        x = self.token(input_ids)
        attended: Tensor = self.attention(x, memory, memory, need_weights=False)[0]
        return x + attended


@pytest.mark.all
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_parts_of_a_weight_are_weights(target: str, tmp_path: Path) -> None:
    inputs = {"input_ids": IDS, "memory": torch.randn(2, 7, D)}
    proven(Across(), tmp_path / "b", target=target, lengths=(1, 17), example_inputs=inputs)
    stored = onnx.load(tmp_path / "b" / "model.onnx")
    names = {each.name for each in stored.graph.initializer}
    products = [node for node in stored.graph.node if node.op_type in ("MatMul", "Gemm")]
    assert [node.input[1] in names for node in products] == [True] * 4
    assert not any(node.op_type == "Split" for node in stored.graph.node)

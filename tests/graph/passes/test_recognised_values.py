"""Shaw's tables of keys and of values by hand: recognised where they are ours, else left right."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posexport.base.refusal import Refusal
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.clipped_values import CLIPPED_VALUES, oracle
from posexport.graph.passes.graph_pass import PassResult
from posexport.graph.passes.recognise.content_bias import Contents
from posexport.graph.passes.recognise.content_values import recognised
from tests.graph.passes.test_recognised_positions import INPUTS, D, H, Shaw, distance
from tests.small import after_recognition, in_short, proven
from tests.text_graphs import graph
from tests.tolerances import agree


class KeyValue(Shaw):
    """Equations 3 and 4 of the paper, with einsum."""

    reach = 4

    def __init__(self) -> None:
        super().__init__()
        self.value_tables = nn.ParameterList(torch.randn(2 * self.reach + 1, D // H) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.token(input_ids)
        dropped = (1 - attention_mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        for qkv, out, keys, values in zip(self.qkv, self.out, self.tables, self.value_tables, strict=True):
            q, k, v = self.heads(qkv, x)
            probs = (self.scores(q, k, keys) + dropped).softmax(-1)
            x = x + out(self.context(probs, v, values))
        return x

    def context(self, probs: Tensor, v: Tensor, table: Tensor) -> Tensor:
        z = torch.einsum("bhij,bhjd->bihd", probs, v) + torch.einsum("bhij,ijd->bihd", probs, self.rows_of(v, table))
        return z.flatten(2)

    def rows_of(self, v: Tensor, table: Tensor) -> Tensor:
        return table[(-distance(v.shape[2])).clamp(-self.reach, self.reach) + self.reach]


class Products(KeyValue):
    """By products of [T, B * H, S], as tensor2tensor has it, before heads are packed."""

    def context(self, probs: Tensor, v: Tensor, table: Tensor) -> Tensor:
        B, heads, T, _ = probs.shape
        of_rows = probs.permute(2, 0, 1, 3).reshape(T, B * heads, T) @ self.rows_of(v, table)
        return (probs @ v + of_rows.view(T, B, heads, -1).permute(1, 2, 0, 3)).transpose(1, 2).flatten(2)


class OtherReach(KeyValue):
    """Values are told fewer distances than keys: two tables, each with its own."""

    reach = 2


class ClippedShort(KeyValue):
    """Clips one before its table ends."""

    def rows_of(self, v: Tensor, table: Tensor) -> Tensor:
        return table[(-distance(v.shape[2])).clamp(1 - self.reach, self.reach) + self.reach]


class Opposite(KeyValue):
    """i - j, where the keys have j - i."""

    def rows_of(self, v: Tensor, table: Tensor) -> Tensor:
        return table[distance(v.shape[2]).clamp(-self.reach, self.reach) + self.reach]


class OfQueries(KeyValue):
    """Sums over queries, not over keys."""

    def context(self, probs: Tensor, v: Tensor, table: Tensor) -> Tensor:
        z = torch.einsum("bhij,bhjd->bihd", probs, v) + torch.einsum("bhji,ijd->bihd", probs, self.rows_of(v, table))
        return z.flatten(2)


class Weighted(KeyValue):
    """Adds half of it."""

    def context(self, probs: Tensor, v: Tensor, table: Tensor) -> Tensor:
        half = torch.einsum("bhij,ijd->bihd", probs, self.rows_of(v, table)) / 2
        return (torch.einsum("bhij,bhjd->bihd", probs, v) + half).flatten(2)


class ReadAgain(KeyValue):
    """Its probabilities go to its output as well."""

    def context(self, probs: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return super().context(probs, v, table) + probs.amax((1, 3))[..., None]


RECOGNISED = (KeyValue, Products, OtherReach)
LEFT: dict[type[KeyValue], str] = {
    ClippedShort: "are not those of clipped distances",
    Opposite: "are not those of clipped distances",
    OfQueries: "its probabilities are read elsewhere too",
    Weighted: "its probabilities are read elsewhere too",
    ReadAgain: "its probabilities are read elsewhere too",
}


def traced(model: KeyValue) -> tuple[Counter[tuple[str | None, str | None]], PassResult]:
    graph, results = after_recognition(model, INPUTS, 23)
    said = results["recognised-attention"]
    found = Counter((spec.scores, spec.values) for node in graph.graph if (spec := AttentionSpec.of(node)))
    return found, said


@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda _model: False))
def test_tables_of_keys_and_values_are_ours(model: type[KeyValue]) -> None:
    found, said = traced(model())
    assert found == {("ClippedScores", "ClippedValues"): 2}
    assert not said.rejected


GRAPH = """HEAD g (float[B, 3, T, T] probs, float[B, 3, T, 8] v, float[9, 8] table, int64 zero, int64 one,
       int64[2] axes, int64 least, int64 most) => (float[B, 3, T, 8] z)
    <float[B, 3, T, 8] product, float[B, 3, T, 8] of_table, float[T, T, 8] gathered>
    {{
        size = Shape <start = 2, end = 3> (v)
        count = Squeeze (size)
        at = Range (zero, count, one)
        first, second = Split <num_outputs = 2> (axes)
        row = Unsqueeze (at, first)
        column = Unsqueeze (at, second)
        distance = Sub ({distance})
        clipped = Clip (distance, least, most)
        rows = Add (clipped, most)
        gathered = Gather (table, rows)
        of_table = Einsum <equation = "bhij,ijd->bhid"> (probs, gathered)
        product = MatMul (probs, v)
        z = {total}
    }}"""


@pytest.mark.parametrize(
    ("distance", "total", "reason"),
    [
        ("row, column", "Add (product, of_table)", None),
        ("column, row", "Add (product, of_table)", "are not those of clipped distances"),
        ("row, column", "Sub (product, of_table)", "its probabilities are read elsewhere too"),
    ],
)
def test_a_sum_of_two_products_is_a_value_operator(distance: str, total: str, reason: str | None) -> None:
    text = GRAPH.format(distance=distance, total=total)
    numbers = {name: np.array(number) for name, number in {"zero": 0, "one": 1, "least": -4, "most": 4}.items()}
    model = graph(text, table=np.zeros((9, 8), np.float32), axes=np.array([0, 1]), **numbers)
    (product,) = (node for node in model.graph if node.op_type == "MatMul")
    found = recognised(Contents(model), model.graph.inputs[0], product)
    if isinstance(found, Refusal):
        assert reason is not None
        assert reason in found.reason
    else:
        assert reason is None
        assert found.operator is CLIPPED_VALUES


@pytest.mark.all
@pytest.mark.parametrize("model", in_short(LEFT, lambda model: model is Weighted))
def test_what_is_nearly_so_is_left(model: type[KeyValue]) -> None:
    found, said = traced(model())
    assert not found
    assert said.rejected == (LEFT[model],) or any(LEFT[model] in reason for reason in said.rejected)


@pytest.mark.parametrize(
    ("model", "target"),
    in_short(
        [(model, target) for model in (*RECOGNISED, *LEFT) for target in ("cpu", "cuda", "portable")],
        lambda _model, _target: False,
    ),
)
def test_all_are_right(tmp_path: Path, model: type[KeyValue], target: str) -> None:
    proven(model(), tmp_path / "b", target=target, lengths=(1, 4, 5, 6, 17), example_inputs=INPUTS)


def test_the_module_s_formula_is_the_operator_s() -> None:
    """What is compared above is what the paper says."""
    probs, table = torch.rand(2, 3, 7, 7), torch.randn(9, 8)
    added = KeyValue().context(probs, torch.zeros(2, 3, 7, 8), table).unflatten(2, (3, 8)).transpose(1, 2)
    at = np.arange(7)
    agree(added.numpy(), oracle(probs.numpy(), table.numpy(), at, at), "attention", np.float32)

"""The longest input of a module is found without computing its scores."""

import logging

import pytest
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.modules.drawn_calls import DrawnCalls
from posexport.proof.grid.point import Budget, GridPoint

ROWS, WIDTH = 3000, 8
INPUTS = [InputSpec(name="x", role="values", dtype="float32", axes=[BATCH, SEQUENCE, WIDTH])]


class Looked(nn.Module):
    """Attention whose positions are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(ROWS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions(torch.arange(x.shape[1]))
        return (x @ x.mT).softmax(-1) @ x


class Relative(nn.Module):
    """A table of distances that scores are added to."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * ROWS - 1))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        scores = x @ x.mT + self.table[places[None] - places[:, None] + ROWS - 1]
        return scores.softmax(-1) @ x


class Added(nn.Module):
    """A table of rows that are added, and of long inputs the scores first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.randn(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = (x @ x.mT).softmax(-1) @ x
        return x + self.rows[: x.shape[1]]


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


class ByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = (x @ x.mT).softmax(-1) @ x
        return x if bool(x.any()) else -x


@pytest.mark.parametrize("kind", [Looked, Relative, Added])
def test_a_table_ends_where_it_ends(kind: type[nn.Module]) -> None:
    calls = DrawnCalls("module", kind().eval(), INPUTS)
    assert calls.accepts({BATCH: 1, SEQUENCE: ROWS})
    assert not calls.accepts({BATCH: 1, SEQUENCE: ROWS + 1})


def test_scores_are_not_computed() -> None:
    """Those of a million tokens would be 4 TB."""
    sizes = {BATCH: 1, SEQUENCE: 1 << 20}
    calls = DrawnCalls("module", Endless().eval(), INPUTS)
    assert calls.accepts(sizes)
    assert calls.shapes(sizes) == {"output": (1, 1 << 20, WIDTH)}
    assert calls.largest_tensor(sizes) == 1 << 40


def test_a_value_that_is_not_computed_is_not_guessed() -> None:
    calls = DrawnCalls("module", ByValue().eval(), INPUTS)
    assert not calls.accepts({BATCH: 1, SEQUENCE: 4096})
    assert calls.largest_tensor({BATCH: 1, SEQUENCE: 4096}) is None
    assert calls.shapes({BATCH: 1, SEQUENCE: 2049}) == {"output": (1, 2049, WIDTH)}


def test_the_memory_of_a_point_is_by_what_a_call_makes() -> None:
    """Where the estimate by the length is too large, and only there."""
    asked = []

    def largest(sizes: object) -> int:
        asked.append(sizes)
        return 1 << 20

    budget = Budget(outputs=[], largest_tensor=largest)
    long, short = GridPoint(batch=2, length=4096), GridPoint(batch=1, length=16)
    assert budget.needed(long, 1 << 30) < 1 << 30 < budget.at_most(long)
    assert budget.needed(short, 1 << 30) == budget.at_most(short)
    assert asked == [{BATCH: 2, SEQUENCE: 4096, "encoder_sequence_length": 1}]


class Complex(nn.Module):
    """Of more than 4,000 tokens the pairs have three numbers each."""

    def forward(self, x: Tensor) -> Tensor:
        pairs = (x @ x.mT).softmax(-1)[..., : 3 if x.shape[1] > 4000 else 2]
        return torch.view_as_complex(pairs.contiguous()).real


def test_a_refused_size_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handle", records.append)
    calls = DrawnCalls("Complex", Complex(), INPUTS)
    assert calls.accepts({BATCH: 1, SEQUENCE: 4000})
    assert not calls.accepts({BATCH: 1, SEQUENCE: 4001})
    assert not records


def test_inputs_that_are_large_themselves_are_not_drawn() -> None:
    """Pairs of tokens: an input of 4,096 tokens alone has 134 million numbers."""
    pairs = [InputSpec(name="x", role="values", dtype="float32", axes=[BATCH, SEQUENCE, SEQUENCE, WIDTH])]
    calls = DrawnCalls("Pairs", Endless(), pairs)
    assert calls.accepts({BATCH: 1, SEQUENCE: 1000})
    assert not calls.accepts({BATCH: 1, SEQUENCE: 4096})

"""The longest input of a module is found without computing its scores."""

import logging
import math
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import pytest
import torch
from torch import Tensor, nn

from posexport.base import example_inputs
from posexport.base.spec import BATCH, SEQUENCE, InputSpec, LengthContract
from posexport.modules.axes import largest
from posexport.modules.axes.largest import largest_of_tokens
from posexport.modules.axes.memory import Made
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


class Counted(nn.Module):
    """Reads how many rows there are from a mask, and scores are large."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], dtype=torch.bool)
        return (x @ x.mT).softmax(-1)[:, : int(mask.sum())] @ x[:, mask.nonzero()[:, 0]]


def test_a_value_of_a_small_tensor_is_read() -> None:
    calls = DrawnCalls("module", Counted().eval(), INPUTS)
    assert calls.accepts({BATCH: 1, SEQUENCE: 1 << 16})


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
    found = calls.call_bytes(sizes)
    assert found is not None
    assert 2 * 4 << 40 <= found < 3 * 4 << 40  # scores and their softmax


def test_a_value_that_is_not_computed_is_not_guessed() -> None:
    calls = DrawnCalls("module", ByValue().eval(), INPUTS)
    assert not calls.accepts({BATCH: 1, SEQUENCE: 4096})
    assert calls.call_bytes({BATCH: 1, SEQUENCE: 4096}) is None
    assert calls.shapes({BATCH: 1, SEQUENCE: 2049}) == {"output": (1, 2049, WIDTH)}


def test_the_memory_of_a_point_is_by_what_a_call_makes() -> None:
    """Where the estimate by the length is too large, and only there."""
    asked = []

    def call_bytes(sizes: object) -> int:
        asked.append(sizes)
        return 1 << 20

    budget = Budget(outputs=[], call_bytes=call_bytes)
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


class Pairs(nn.Module):
    """A table of rows, added to pairs of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.rows(torch.arange(x.shape[1]))).softmax(-1)


def test_inputs_that_are_large_themselves_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of tokens: an input of 3,000 tokens alone has 72 million numbers."""
    drawn = []
    random = example_inputs.random_content
    monkeypatch.setattr(example_inputs, "random_content", lambda *a: drawn.append(math.prod(a[1])) or random(*a))
    pairs = [InputSpec(name="x", role="values", dtype="float32", axes=[BATCH, SEQUENCE, SEQUENCE, WIDTH])]
    calls = DrawnCalls("Pairs", Pairs(), pairs)
    assert calls.accepts({BATCH: 1, SEQUENCE: 100})
    assert calls.accepts({BATCH: 1, SEQUENCE: ROWS})
    assert not calls.accepts({BATCH: 1, SEQUENCE: ROWS + 1})
    assert drawn == [8 * 100**2]


class Counting(nn.Module):
    """Scores of which a value is read, and the lengths of all calls."""

    lengths: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.lengths.append(x.shape[1])
        x = (x @ x.mT).softmax(-1) @ x
        return x if bool(x.any()) else -x


def test_a_call_whose_shapes_do_not_tell_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 256 tokens has two arrays of 262 KB, one of 512 four times as much."""
    monkeypatch.setattr(largest, "_MEMORY", 3 << 18)
    monkeypatch.setattr(largest, "_peak", lambda: 0)
    monkeypatch.setattr(DrawnCalls, "accepts", lambda *_: False)
    calls = DrawnCalls("Counting", Counting().eval(), INPUTS)
    found = largest_of_tokens(calls, {BATCH: 2, SEQUENCE: 32}, SEQUENCE, LengthContract(), 1)
    assert (found.size, found.limit) == (256, None)
    assert max(Counting.lengths) == 257


def test_the_memory_of_a_call_is_of_what_is_held_together() -> None:
    def run(x: Tensor) -> Tensor:
        for _ in range(9):
            x = x + 1
        kept = [x * 2, x * 3]
        return kept[0] + kept[1].view(-1, 1).squeeze(1)

    with Made() as made:
        run(torch.zeros(1 << 20))
    assert made.bytes == 4 * 4 << 20
    with Made() as made:
        torch.eye(4).to_sparse()
    assert made.bytes >= 4 * 4 * 4


def test_points_of_several_rows_that_need_much_have_one() -> None:
    asked = []

    def call_bytes(sizes: Mapping[str, int]) -> int:
        asked.append((sizes[BATCH], sizes[SEQUENCE]))
        return 1000 * sizes[BATCH] * sizes[SEQUENCE] ** 2

    budget = Budget(outputs=[], call_bytes=call_bytes)
    points = [GridPoint(batch=batch, length=length) for length in (16, 129, 257) for batch in (1, 3)]
    several = GridPoint(batch=3, length=257, padding="ragged")
    kept = budget.with_few_rows([*points, several, msgspec.structs.replace(several, calls=(200, 57))])
    assert kept == [*points[:-1], msgspec.structs.replace(points[-2], calls=(200, 57))]
    assert asked == [(3, 257), (3, 257), (3, 129)]
    assert budget.with_few_rows(points[4:]) == points[4:]  # one of several rows at least
    assert Budget(outputs=[]).with_few_rows(points) == points


def test_further_lengths_fit_by_what_a_call_makes() -> None:
    lengths = [512, 1024, 1280]
    fits = Budget(outputs=[], easily=1 << 30, call_bytes=lambda sizes: 100 * sizes[SEQUENCE] ** 2)
    large = Budget(outputs=[], easily=1 << 30, call_bytes=lambda sizes: 300 * sizes[SEQUENCE] ** 2)
    assert fits.further(lengths) == [1024, 1280]
    assert large.further(lengths) == [1024]
    assert large.further([512]) == [512]
    assert large.further([]) == []

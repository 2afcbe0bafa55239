"""Rows in calls of so many tokens: each once, in their order, and never more than was allowed."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posexport.errors import PosexportError
from posexport.run.batches import BATCH_TOKENS, Batches

lengths = st.lists(st.integers(1, 900), min_size=1, max_size=60)


def rows_of(lengths: list[int]) -> list[Any]:
    return [SimpleNamespace(ids=[number] * length) for number, length in enumerate(lengths)]


class Padding:
    """As the bundle's tokenizer pads."""

    def padded(self, rows: list[Any]) -> dict[str, Any]:
        length = max(len(row.ids) for row in rows)
        return {"ids": np.array([row.ids + [-1] * (length - len(row.ids)) for row in rows])}


# a busy machine draws slowly
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lengths, st.integers(1, 2000), st.one_of(st.none(), st.integers(1, 9)))
def test_every_row_has_its_own_answer_and_no_call_has_more_tokens(
    lengths: list[int], tokens: int, rows: int | None
) -> None:
    shapes: list[tuple[int, int]] = []

    def run(feeds: Mapping[str, Any]) -> Any:
        shapes.append(feeds["ids"].shape)
        return feeds["ids"][:, :1].astype(np.float32)

    told: list[tuple[int, int]] = []
    batches = Batches(tokens, rows, lambda done, total, _: told.append((done, total)))
    answers = batches.run(run, Padding(), rows_of(lengths))  # type: ignore[arg-type]
    assert answers[:, 0].tolist() == list(range(len(lengths)))
    assert all(count == 1 or count * length <= tokens for count, length in shapes)
    assert all(rows is None or count <= rows for count, _ in shapes)
    assert told[-1] == (len(lengths), len(lengths))
    assert [done for done, _ in told] == np.cumsum([count for count, _ in shapes]).tolist()


def test_a_call_is_filled() -> None:
    """Of short rows many share a call, of the longest few."""
    assert [len(each) for each in Batches().places([8] * 600)] == [BATCH_TOKENS // 8, 600 - BATCH_TOKENS // 8]
    assert [len(each) for each in Batches().places([512] * 20)] == [8, 8, 4]


@pytest.mark.parametrize("option", ["batch_tokens", "batch_size"])
def test_none_at_all_is_refused(option: str) -> None:
    with pytest.raises(PosexportError, match=f"{option} must be at least 1, got 0"):
        Batches(**{option: 0})  # type: ignore[arg-type]

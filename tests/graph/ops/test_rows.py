"""Which parameters of an operator have a row for every query or key, and how rows are numbered, by changing one."""

from collections.abc import Sequence

import numpy as np
import pytest

from posexport.graph.ops.operator import OPERATORS, Case, Operator
from tests.graph.ops.test_ops import inputs, truth

WITH_ROWS = [pytest.param(operator, id=operator.name) for operator in OPERATORS.values() if operator.rows]
#: no two sizes are equal; queries begin after some keys
CASE = Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=23, offset=12)
CHANGED = [
    pytest.param(operator, name, id=f"{operator.name}-{name}")
    for operator in OPERATORS.values()
    for name in operator.own
]


def differing(operator: Operator, name: str, axis: int, row: int) -> np.ndarray:
    """Pairs [T, S] whose scores differ where one row of a parameter does, upwards or downwards; of values [T, D]."""
    arrays = inputs(operator, CASE)
    before = truth(operator, arrays)
    at = (slice(None),) * axis + (row,)
    pairs = np.zeros(before.shape[2:], bool)
    for sign in (1, -1):
        changed = arrays[name].copy()
        steps = np.where(np.arange(changed[at].size).reshape(changed[at].shape) % 2, 2, 5)
        changed[at] = sign * (changed[at] * 3 + steps)
        pairs |= (np.abs(truth(operator, {**arrays, name: changed}) - before) > 1e-9).any((0, 1))
    return pairs


@pytest.mark.parametrize("operator", WITH_ROWS)
def test_a_row_is_that_of_its_query_key_or_distance(operator: Operator) -> None:
    arrays = inputs(operator, CASE)
    q, k = arrays["qpos"][:, None], arrays["kpos"][None]
    for name, rows in operator.rows.items():
        count = arrays[name].shape[rows.axis]
        numbers = {"queries": q + 0 * k, "keys": k + 0 * q, "distances": q - k}[rows.of]
        start = k.min() if rows.first is None else arrays[rows.first[0]][rows.first[1]]
        nearest = np.clip(numbers - start, 0, count - 1)
        for row in range(count):
            differ = differing(operator, name, rows.axis, row)
            # a difference of codes may be past the end of its table whatever one of them is
            assert not (differ & (nearest != row)).any(), (name, row)
            assert (differ == (nearest == row)).all() or operator.name == "GridScores", (name, row)


@pytest.mark.parametrize(("operator", "name"), CHANGED)
def test_no_other_parameter_has_rows_of_tokens(operator: Operator, name: str) -> None:
    """Rows of heads and channels change several queries and several keys."""
    array = inputs(operator, CASE)[name]
    for axis, count in enumerate(array.shape if name not in operator.rows and array.dtype.kind == "f" else ()):
        pairs = [differing(operator, name, axis, row) for row in range(count)]
        assert _usual(pairs, 1) > 1, (name, axis)
        assert operator.gives == "values" or _usual(pairs, 0) > 1, (name, axis)


def _usual(pairs: Sequence[np.ndarray], axis: int) -> float:
    """How many tokens a row changes: the median of rows that change any, as the nearest row serves several."""
    return float(np.median([changed.any(axis).sum() for changed in pairs if changed.any()]))

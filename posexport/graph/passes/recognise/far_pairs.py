"""Values over pairs of tokens at a few queries, for lengths at which there is no memory for all pairs.

Where pairs are computed element by element from a row and a column of numbers, few rows take little time. So a window
of 4,096 tokens is known by queries at twice that number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from posexport.graph.dataflow import reachable
from posexport.graph.partial import Array, Subgraph
from posexport.graph.passes.recognise.mask_structure import has_table_beyond, numbers_beyond
from posexport.graph.queries import constant, sizes
from posexport.graph.single_row import ELEMENTWISE

#: the largest number that is followed, elements that are computed at most, and tokens beyond twice the number
_LARGEST, _MOST, _MARGIN = 1 << 19, 1 << 24, 65


@dataclass(frozen=True)
class FarPairs:
    """Values over pairs of tokens at a few queries.

    Attributes:
        queries: their tokens, the first and the last of all among them.
        length: the number of keys.
        values: [..., queries, keys].
    """

    queries: Array
    length: int
    values: list[Array]


def beyond(graph: ir.Graph, longest: int, limit: int | None) -> int | None:
    """A length at which every number in ``graph`` above ``longest`` has had its effect; None where there is none."""
    numbers = numbers_beyond(graph, longest)
    if not numbers or numbers[-1] > _LARGEST:
        return None
    length = 2 * numbers[-1] + _MARGIN
    length = length if limit is None else min(length, limit)
    return None if has_table_beyond(graph, length) else length


def far_pairs(
    model: ir.Model,
    values: Sequence[ir.Value],
    tokens: str,
    longest: int,
    limit: int | None,
    inputs: Mapping[ir.Value, int] | None = None,
) -> FarPairs | None:
    """``values`` at a few queries far beyond ``longest`` ``tokens``.

    None where they are not computed element by element, or where numbers are too large.

    Args:
        inputs: inputs of the graph, [1, tokens], and the number in each; others are zeros.
        limit: no input is longer.
    """
    graph = Subgraph(model, values).model.graph
    length, axes = beyond(graph, longest, limit), _Axes(tokens)
    if length is None or any("queries" not in (axes.of(value) or {}).values() for value in values):
        return None
    # the first and the last queries, and those around each number
    near = {number + step for number in numbers_beyond(graph, longest) for step in (-1, 0, 1)}
    queries = np.array(sorted({0, 1, length // 2, length - 1} | {at for at in near if at < length}))
    heads = max(int(np.prod([size for size in sizes(value) or () if isinstance(size, int)])) for value in values)
    if heads * len(queries) * length > _MOST:
        return None
    # rows and columns of all tokens, then the pairs of the queries
    fed = {value: np.full((1, length), number) for value, number in (inputs or {}).items()}
    whole = Subgraph(model, list(axes.ends)).run(fed, {tokens: length})
    if whole is None:
        return None
    ends = zip(axes.ends.items(), whole, strict=True)
    arrays = {end: x.take(queries, axis) if role == "queries" else x for (end, (axis, role)), x in ends}
    computed = Subgraph(model, values, list(axes.ends)).run({**fed, **arrays}, {tokens: length})
    return None if computed is None else FarPairs(queries, length, computed)


@dataclass
class _Axes:
    """Which axes of values have a row for each query, and which one for each key.

    ``ends``: values of one of these that pairs are computed from, with the axis.
    """

    tokens: str
    ends: dict[ir.Value, tuple[int, str]] = field(default_factory=dict)

    def of(self, value: ir.Value) -> dict[int, str] | None:
        """The axes of ``value``; None where they are not known."""
        shape, node = sizes(value), value.producer()
        if shape is None:
            return None
        if not is_of_pairs(value, self.tokens):
            having = [axis for axis, size in enumerate(shape) if size == self.tokens]
            if not having:
                return {}
            role = "keys" if having[-1] == len(shape) - 1 else "queries"
            if len(having) > 1 or (role == "queries" and having[-1] != len(shape) - 2):
                return None
            self.ends[value] = having[-1], role
            return {having[-1]: role}
        if node is None or node.domain:
            return None
        of_inputs = [(x, self.of(x)) for x in node.inputs if x is not None]
        if node.op_type in ELEMENTWISE:
            found: dict[int, str] = {}
            for x, axes in of_inputs:
                if axes is None:
                    return None
                moved = {axis + len(shape) - len(sizes(x) or ()): role for axis, role in axes.items()}
                if any(found.setdefault(axis, role) != role for axis, role in moved.items()):
                    return None
            return found
        return None if of_inputs[0][1] is None else self._moved(node, of_inputs[0][1])

    def _moved(self, node: ir.Node, axes: dict[int, str]) -> dict[int, str] | None:
        """The axes after an operator that reads one value."""
        rank, rank_out = (len(value.shape or ()) for value in (node.inputs[0], node.outputs[0]) if value is not None)
        if node.op_type == "Transpose":
            order = list(node.attributes.get_ints("perm") or ())
            return {order.index(axis): role for axis, role in axes.items()}
        named = constant(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints("axes")
        if named is None or node.op_type not in ("Unsqueeze", "Squeeze", "ReduceMax", "ReduceMin", "ReduceSum"):
            return None
        changed = {int(axis) % max(rank, rank_out) for axis in np.asarray(named).reshape(-1)}
        if node.op_type == "Unsqueeze":
            places = [axis for axis in range(rank_out) if axis not in changed]
            return {places[axis]: role for axis, role in axes.items()}
        if any(axes.get(axis) == "queries" for axis in changed):
            return None
        places = [axis for axis in range(rank) if axis not in changed] if rank_out < rank else list(range(rank))
        return {places.index(axis): role for axis, role in axes.items() if axis not in changed}


def is_of_pairs(value: ir.Value, tokens: str) -> bool:
    """Whether ``value`` is over pairs of ``tokens``, or is computed from values that are."""

    def onward(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        return () if node is None else node.inputs

    chain = (each for each in reachable([value], onward) if each is not None)
    return any([size == tokens for size in _named(each)].count(True) > 1 for each in chain)


def _named(value: ir.Value) -> list[str | None]:
    return [None if isinstance(size, int) else size.value for size in value.shape or ()]

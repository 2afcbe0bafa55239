"""Selects rows of values that depend on all positions, for the new tokens or for all tokens of each batch row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import onnx_ir as ir

from posexport.graph.builder import Builder, Operand
from posexport.graph.passes.cache.counted import Counted
from posexport.graph.passes.cache.known import Known
from posexport.graph.passes.cache.whole import Whole
from posexport.graph.single_row import ELEMENTWISE

#: whether rows are those of queries, the new tokens, or of keys, which are all
Role = Literal["queries", "keys"]
#: axes of a value -> of which tokens its rows are
Roles = Mapping[int, Role]
#: the rows of a node's output; None where they do not follow from rows of its inputs
Rule = Callable[["Rows", ir.Node, ir.Value, Roles], ir.Value | None]


class Rows:
    """Moves the selection of rows back through the nodes that compute a value, to the node that counts tokens.

    That node is replaced by position ids, so that a decode step computes one row of cosines and not all. If there is no
    rule for a node, the whole value is computed and rows are gathered. The results have the batch as first axis.
    """

    def __init__(self, g: Builder, known: Known, whole: Whole, counted: Counted, rules: Mapping[str, Rule]) -> None:
        self.g, self.known, self.whole, self.counted = g, known, whole, counted
        self._rules = rules
        self._picked: dict[tuple[ir.Value, tuple[tuple[int, str], ...]], ir.Value] = {}

    def pick(self, value: ir.Value, roles: Roles) -> ir.Value:
        """``value`` [...] at the positions of its ``roles``, [B, ...]."""
        key = (value, tuple(sorted(roles.items())))
        if key not in self._picked:
            self._picked[key] = self._of(value, roles)
        return self._picked[key]

    def positions(self, value: ir.Value, role: str) -> ir.Value:
        """The indices of the rows of ``value`` for queries, [B, T], or for keys, [B, S].

        A value that is computed from the input ``position_ids`` is indexed by them; masks are indexed by the order of
        the tokens.
        """
        counted = self.counted
        if value in self.known.colours.of_positions:
            return counted.position_ids if role == "queries" else counted.key_positions
        return counted.counted_ids if role == "queries" else counted.counted_keys

    def count(self, role: str) -> ir.Value:
        """The number of queries T or of keys S, int64 [1]."""
        return self.counted.new if role == "queries" else self.counted.total

    def again(self, node: ir.Node, value: ir.Value, inputs: Sequence[Operand], **changed: object) -> ir.Value:
        """A copy of ``node`` with other inputs and attributes; returns its output in the place of ``value``."""
        attributes = {name: attribute.value for name, attribute in node.attributes.items()} | changed
        names = [""] * len(node.outputs)
        return self.g.several(node.op_type, names, *inputs, **attributes)[list(node.outputs).index(value)]

    def shape(self, value: ir.Value, roles: Roles) -> ir.Value | None:
        """The shape of the selected rows of ``value``, with the batch axis; None if it is unknown."""
        arrays = self.known.arrays(value)
        parts: list[ir.Value | list[int]] = [self.counted.batch]
        for axis in range(arrays[0].ndim):
            if axis in roles:
                parts.append(self.count(roles[axis]))
            elif len({array.shape[axis] for array in arrays}) == 1:
                parts.append([arrays[0].shape[axis]])
            else:
                return None
        return self.g.shape(*parts)

    def with_rank(self, rows: ir.Value, rank: int, full: int) -> ir.Value:
        """Rows [B, ...] of a value of ``rank`` axes that is broadcast to ``full`` axes."""
        return self.g.Unsqueeze(rows, list(range(1, 1 + full - rank))) if full > rank else rows

    def _of(self, value: ir.Value, roles: Roles) -> ir.Value:
        start = self.known.counts(value) if len(roles) == 1 else None
        if start is not None:
            return self._counted(value, roles, start)
        node = value.producer()
        rule = None
        if node is not None and not node.domain:
            rule = self._rules.get("elementwise" if node.op_type in ELEMENTWISE else node.op_type)
        rows = None if rule is None or node is None else rule(self, node, value, roles)
        return self._gathered(value, roles) if rows is None else rows

    def _counted(self, value: ir.Value, roles: Roles, start: int) -> ir.Value:
        """Rows of a value that counts tokens from ``start``."""
        ((axis, role),) = roles.items()
        at = self.positions(value, role)
        if start:
            at = self.g.Add(at, start)
        if value.dtype != ir.DataType.INT64:
            at = self.g.Cast(at, to=value.dtype)
        ones = [other + 1 for other in range(self.known.rank(value)) if other != axis]
        return self.g.Unsqueeze(at, ones) if ones else at

    def _gathered(self, value: ir.Value, roles: Roles) -> ir.Value:
        g, rank = self.g, self.known.rank(value)
        (first, role), *others = sorted(roles.items())
        rows = self.batch_in_front(
            g.Gather(self.whole.of(value), self.positions(value, role), axis=first), first, rank + 1
        )
        for axis, other in others:
            # batch and this axis first, then select the positions of every batch row
            at = axis + 1
            order = [0, at, *(place for place in range(1, rank + 1) if place != at)]
            picked = g.op(
                "GatherND", g.Transpose(rows, perm=order), g.Unsqueeze(self.positions(value, other), [2]), batch_dims=1
            )
            rows = g.Transpose(picked, perm=[order.index(place) for place in range(rank + 1)])
        return rows

    def batch_in_front(self, rows: ir.Value, axis: int, rank: int) -> ir.Value:
        """Move the batch of ``rows``, of ``rank`` axes, from ``axis`` to the front."""
        order = [axis, *range(axis), *range(axis + 1, rank)]
        return self.g.Transpose(rows, perm=order) if axis else rows

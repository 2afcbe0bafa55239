"""Recognises relative position scores that a module computes with PyTorch operators, and writes score operators.

``q_i . E[row(i, j)]``, by einsum or MatMul, in any layout (Shaw et al., arXiv:1803.02155; Huang et al.,
arXiv:2009.13658), is recognised by these rules:

1. The added values read rows [T, T, D] of one table with the width of a head.
2. They are products of the rows with queries, or with queries and with keys. Tested by running the nodes on small
   integers, for which floats are exact.
3. The row indices are distances. Tested at lengths up to the table's end, and beyond it if distances are clipped.
   Without a clip, PyTorch raises beyond the end, so that the module has a length limit.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.graph.builder import Builder
from posexport.graph.dataflow import sources
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.operator import Operator
from posexport.graph.ops.relative_key_query_scores import RELATIVE_KEY_QUERY_SCORES
from posexport.graph.ops.relative_key_scores import RELATIVE_KEY_SCORES
from posexport.graph.partial import Subgraph, shape
from posexport.graph.queries import is_weight, number, sizes

#: maximum length of a table that is examined: indices of all pairs are computed
_LONGEST = 4096
#: batch size and sequence length at which products are compared
_BATCH, _TOKENS = 2, 5
_NO_PRODUCT = Refusal(
    "what is added to its scores reads queries or keys, and is no product with rows of a table by distance"
)
_NO_DISTANCE = Refusal(
    "what is added to its scores reads rows of a table that are not those of the distances in their order"
)


@dataclass(frozen=True)
class Scaled:
    """A ``value`` that is added to scores, and the factor by which the sum is scaled afterwards."""

    value: ir.Value
    by: float


@dataclass(frozen=True)
class Content:
    """The ``operator`` that computes the added scores, and its ``table``."""

    operator: Operator
    table: ir.Value


def reads(value: ir.Value, *roots: ir.Value) -> bool:
    """Whether ``value`` is computed from one of ``roots``' elements."""
    return any(source in roots for source in sources(value, stops=roots))


def root(value: ir.Value) -> ir.Value:
    """Queries or keys before transposes and scales."""
    node = value.producer()
    if node is not None and not node.domain and node.op_type in ("Transpose", "Mul", "Div", "Unsqueeze"):
        scaled = [number(operand) is None for operand in node.inputs]
        if node.op_type in ("Transpose", "Unsqueeze") or scaled == [True, False]:
            assert node.inputs[0] is not None
            return root(node.inputs[0])
        if node.op_type == "Mul" and scaled == [False, True]:
            assert node.inputs[1] is not None
            return root(node.inputs[1])
    return value


class Contents:
    """Score operators of one traced graph; rows of a table are computed once for all layers."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        #: (indices, rows of the table) -> the operator with these indices
        self._known: dict[tuple[ir.Value, int], Operator | None] = {}

    def recognised(self, added: Sequence[Scaled], q: ir.Value, k: ir.Value, scale: float) -> Content | Refusal:
        """The operator of the sum of ``added`` values, which is added to ``scale * (q k)``, or why there is none.

        q is [B, H, T, D] and k [B, H, D, T].
        """
        roots, (tokens, size) = (root(q), root(k)), (sizes(q) or (None, None))[-2:]
        picks = {gather for scaled in added for gather in gathers(scaled.value, roots, size)}
        gather = picks.pop() if len(picks) == 1 else None  # rule 1
        table, rows = (None, None) if gather is None else gather.inputs
        if gather is None or table is None or rows is None or not isinstance(tokens, str):
            return _NO_PRODUCT
        if sizes(gather.outputs[0]) != (tokens, tokens, size) or len(sizes(q) or ()) != 4 or sizes(k) != _exchanged(q):
            return _NO_PRODUCT
        # rule 2
        parts = [_factors(self.model, scaled, gather.outputs[0], (q, k), scale) for scaled in added]
        letters = "".join(sorted("".join(letter or "?" for letter in parts)))
        if letters not in ("q", "kq"):
            return _NO_PRODUCT
        # rule 3
        operator = self.operator(rows, tokens, int((sizes(table) or (0,))[0]))
        if letters == "kq":
            operator = RELATIVE_KEY_QUERY_SCORES if operator is RELATIVE_KEY_SCORES else None
        return _NO_DISTANCE if operator is None else Content(operator, table)

    def operator(self, rows: ir.Value, tokens: str, count: int) -> Operator | None:
        """The operator that reads a table of ``count`` rows at the indices ``rows`` [T, T]."""
        if (rows, count) not in self._known:
            self._known[rows, count] = _by_distance(self.model, rows, tokens, count)
        return self._known[rows, count]


def counted(x: ir.Value, before: ir.Node) -> ir.Value:
    """Positions 0, 1, 2, ... of the tokens of x [B, H, T, D], shared by all values of the same length."""
    graph, tokens = before.graph, (sizes(x) or (None,) * 4)[2]
    assert graph is not None
    name = f"positions_of_{tokens}"
    for node in graph:
        if node.op_type == "Range" and node.outputs[0].name == name:
            return node.outputs[0]
    source = next((graph_input for graph_input in graph.inputs if tokens in (sizes(graph_input) or ())), x)
    g = Builder.at(before)
    count = g.size(source, (sizes(source) or ()).index(tokens or ""))
    return g.op("Range", 0, g.Squeeze(count), 1, name=name, shape=[tokens])


def _exchanged(q: ir.Value) -> tuple[int | str, ...]:
    """The sizes of keys [B, H, D, T] for as many tokens."""
    batch, heads, tokens, size = sizes(q) or ()
    return batch, heads, size, tokens


def gathers(value: ir.Value, roots: Collection[ir.Value], width: int | str | None) -> Iterator[ir.Node]:
    """The nodes that gather rows of a table with the width of a head."""
    for source in sources(value, stops=roots):
        node = source.producer()
        if node is not None and _picks_rows(node):
            table = node.inputs[0]
            if is_weight(table, 2) and (sizes(table) or ())[1] == width:
                yield node


def _picks_rows(node: ir.Node) -> bool:
    """Whether the node is an embedding lookup or indexing by tensors."""
    return node.op_type == "GatherND" or (node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0)


def _factors(
    model: ir.Model, added: Scaled, rows: ir.Value, heads: tuple[ir.Value, ir.Value], scale: float
) -> str | None:
    """``q``, ``k`` or ``qk``: what is multiplied by the table's ``rows`` [T, T, D] in ``added``; None if neither."""
    free = list(dict.fromkeys([*map(root, heads), rows]))
    subgraph = Subgraph(model, [added.value, *heads], free)
    if not subgraph.is_closed or any(value.dtype != ir.DataType.FLOAT for value in free):
        return None
    batch, _, tokens, _ = sizes(heads[0]) or (None,) * 4
    lengths = {name: size for name, size in ((batch, _BATCH), (tokens, _TOKENS)) if isinstance(name, str)}
    rng = np.random.default_rng(0)
    arrays = {value: rng.integers(-4, 5, shape(value, lengths)).astype(np.float32) for value in free}
    outputs = subgraph.run(arrays, lengths)
    if outputs is None:
        return None
    sums, q, k = (x.astype(np.float64) for x in outputs)
    of_query = np.einsum("bhld,lrd->bhlr", q, arrays[rows])
    of_key = np.einsum("bhdr,lrd->bhlr", k, arrays[rows])
    for letters, expected in (("q", of_query), ("k", of_key), ("qk", of_query + of_key)):
        if sums.shape == expected.shape and np.allclose(sums * added.by, expected * scale, rtol=1e-5, atol=1e-5):
            return letters
    return None


def _by_distance(model: ir.Model, rows: ir.Value, tokens: str, count: int) -> Operator | None:
    """The operator that reads a table of ``count`` rows at the indices ``rows``; None if there is none."""
    middle, odd = divmod(count, 2)
    end = middle + 1
    subgraph = Subgraph(model, [rows])
    if not odd or end > _LONGEST or not subgraph.is_closed:
        return None
    holding = [(RELATIVE_KEY_SCORES, 1), (CLIPPED_SCORES, -1)]
    for length in (1, 2, end, end + 3):
        answer, at = subgraph.run({}, {tokens: length}), np.arange(length)
        if answer is None or answer[0].size != length * length:
            if length > end:
                continue  # PyTorch raises as well, for example beyond the end of a buffer
            return None
        indices = answer[0].reshape(length, length)
        for operator, sign in list(holding):
            distances = sign * (at[:, None] - at) + middle
            as_clipped = (indices == np.clip(distances, 0, count - 1)).all()
            if not as_clipped and not (length > end and (indices == distances).all()):
                holding.remove((operator, sign))
    return holding[0][0] if holding else None

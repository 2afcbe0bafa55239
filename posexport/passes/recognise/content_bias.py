"""Scores of queries and keys against a table by distance, in PyTorch operators, as score operators.

``q_i . E[row(i, j)]``, by einsum or as products, in whatever layout (Shaw et al., arXiv:1803.02155; Huang et al.,
arXiv:2009.13658), is one of these:

1. All that is added reads rows [T, T, D] of one table that is as wide as a head.
2. It is the sum over queries, or the sum over queries and the one over keys: computed with small whole numbers, of
   which floats are exact, and compared.
3. Rows are numbered by distance: computed at lengths up to the table's end, and beyond it where
   distances are clipped there. Beyond an end without a clip PyTorch raises, so that the module's length has a limit.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.dataflow import sources
from posexport.graph.partial import Part, shape
from posexport.graph.queries import is_weight, number, sizes
from posexport.ops.clipped_scores import CLIPPED_SCORES
from posexport.ops.operator import Operator
from posexport.ops.relative_key_query_scores import RELATIVE_KEY_QUERY_SCORES
from posexport.ops.relative_key_scores import RELATIVE_KEY_SCORES

#: tokens that the largest table looked at is for: rows of all pairs are computed
_LONGEST = 4096
#: of a batch, and of the tokens that products are compared for
_BATCH, _TOKENS = 2, 5
_NO_PRODUCT = "what is added to its scores reads queries or keys, and is no product with rows of a table by distance"
_NO_DISTANCE = "what is added to its scores reads rows of a table that are not those of the distances in their order"


@dataclass(frozen=True)
class Scaled:
    """A ``value`` that is added to scores, and the factor that all of them get afterwards."""

    value: ir.Value
    by: float


@dataclass(frozen=True)
class Content:
    """The ``operator`` that computes the added scores, and its ``table``."""

    operator: Operator
    table: ir.Value


def reads(value: ir.Value, *roots: ir.Value) -> bool:
    """Whether ``value`` is computed from one of ``roots``' elements."""
    return any(each in roots for each in sources(value, stops=roots))


def root(value: ir.Value) -> ir.Value:
    """Queries or keys before they were transposed or scaled, from which all of their readers can be computed."""
    node = value.producer()
    if node is not None and not node.domain and node.op_type in ("Transpose", "Mul", "Div", "Unsqueeze"):
        scaled = [number(each) is None for each in node.inputs]
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
        #: rows -> how many are in the table, and the operator that reads them so
        self._known: dict[tuple[ir.Value, int], Operator | None] = {}

    def recognised(self, added: Sequence[Scaled], q: ir.Value, k: ir.Value, scale: float) -> Content | str:
        """The operator of the sum of ``added`` values, which is added to ``scale * (q k)``, or why there is none.

        q is [B, H, T, D] and k [B, H, D, T].
        """
        roots, (tokens, size) = (root(q), root(k)), (sizes(q) or (None, None))[-2:]
        picks = {gather for each in added for gather in gathers(each.value, roots, size)}
        gather = picks.pop() if len(picks) == 1 else None  # rule 1
        table, rows = (None, None) if gather is None else gather.inputs
        if gather is None or table is None or rows is None or not isinstance(tokens, str):
            return _NO_PRODUCT
        if sizes(gather.outputs[0]) != (tokens, tokens, size) or len(sizes(q) or ()) != 4 or sizes(k) != _exchanged(q):
            return _NO_PRODUCT
        # rule 2
        parts = [_part(self.model, each, gather.outputs[0], (q, k), scale) for each in added]
        letters = "".join(sorted("".join(part or "?" for part in parts)))
        if letters not in ("q", "kq"):
            return _NO_PRODUCT
        # rule 3
        operator = self.operator(rows, tokens, int((sizes(table) or (0,))[0]))
        if letters == "kq":
            operator = RELATIVE_KEY_QUERY_SCORES if operator is RELATIVE_KEY_SCORES else None
        return _NO_DISTANCE if operator is None else Content(operator, table)

    def operator(self, rows: ir.Value, tokens: str, count: int) -> Operator | None:
        """What reads a table of ``count`` by ``rows`` of it for all pairs of ``tokens``."""
        if (rows, count) not in self._known:
            self._known[rows, count] = _by_distance(self.model, rows, tokens, count)
        return self._known[rows, count]


def counted(x: ir.Value, before: ir.Node) -> ir.Value:
    """0, 1, 2 ... for every token of [B, H, T, D], once for all that have as many."""
    graph, tokens = before.graph, (sizes(x) or (None,) * 4)[2]
    assert graph is not None
    name = f"positions_of_{tokens}"
    for node in graph:
        if node.op_type == "Range" and node.outputs[0].name == name:
            return node.outputs[0]
    source = next((each for each in graph.inputs if tokens in (sizes(each) or ())), x)
    g = Builder.at(before)
    count = g.size(source, (sizes(source) or ()).index(tokens or ""))
    return g.op("Range", 0, g.Squeeze(count), 1, name=name, shape=[tokens])


def _exchanged(q: ir.Value) -> tuple[int | str, ...]:
    """The sizes of keys [B, H, D, T] for as many tokens."""
    batch, heads, tokens, size = sizes(q) or ()
    return batch, heads, size, tokens


def gathers(value: ir.Value, roots: Collection[ir.Value], width: int | str | None) -> Iterator[ir.Node]:
    """What picks rows of a table as wide as a head."""
    for each in sources(value, stops=roots):
        node = each.producer()
        if node is not None and _picks_rows(node):
            table = node.inputs[0]
            if is_weight(table, 2) and (sizes(table) or ())[1] == width:
                yield node


def _picks_rows(node: ir.Node) -> bool:
    """As an embedding does, or an index of tensors."""
    return node.op_type == "GatherND" or (node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0)


def _part(model: ir.Model, added: Scaled, rows: ir.Value, heads: tuple[ir.Value, ir.Value], scale: float) -> str | None:
    """Whether ``q``, ``k`` or both (``qk``) are multiplied by a table's ``rows`` [T, T, D] in ``added``."""
    free = list(dict.fromkeys([*map(root, heads), rows]))
    part = Part(model, [added.value, *heads], free)
    if not part.is_closed or any(value.dtype != ir.DataType.FLOAT for value in free):
        return None
    batch, _, tokens, _ = sizes(heads[0]) or (None,) * 4
    lengths = {name: size for name, size in ((batch, _BATCH), (tokens, _TOKENS)) if isinstance(name, str)}
    rng = np.random.default_rng(0)
    given = {value: rng.integers(-4, 5, shape(value, lengths)).astype(np.float32) for value in free}
    found = part.run(given, lengths)
    if found is None:
        return None
    sums, q, k = (x.astype(np.float64) for x in found)
    of_query = np.einsum("bhld,lrd->bhlr", q, given[rows])
    of_key = np.einsum("bhdr,lrd->bhlr", k, given[rows])
    for letters, wanted in (("q", of_query), ("k", of_key), ("qk", of_query + of_key)):
        if sums.shape == wanted.shape and np.allclose(sums * added.by, wanted * scale, rtol=1e-5, atol=1e-5):
            return letters
    return None


def _by_distance(model: ir.Model, rows: ir.Value, tokens: str, count: int) -> Operator | None:
    """The operator that reads a table of ``count`` in the order of its ``rows``; None where there is none."""
    middle, odd = divmod(count, 2)
    end = middle + 1
    part = Part(model, [rows])
    if not odd or end > _LONGEST or not part.is_closed:
        return None
    holding = [(RELATIVE_KEY_SCORES, 1), (CLIPPED_SCORES, -1)]
    for length in (1, 2, end, end + 3):
        answer, at = part.run({}, {tokens: length}), np.arange(length)
        if answer is None or answer[0].size != length * length:
            if length > end:
                continue  # PyTorch raises as well, for example beyond the end of a buffer
            return None
        found = answer[0].reshape(length, length)
        for operator, sign in list(holding):
            row = sign * (at[:, None] - at) + middle
            as_clipped = (found == np.clip(row, 0, count - 1)).all()
            if not as_clipped and not (length > end and (found == row).all()):
                holding.remove((operator, sign))
    return holding[0][0] if holding else None

"""Probabilities against a table by distance, in PyTorch operators, as a value operator.

``sum_j p_ij E[row(i, j)]`` added to ``sum_j p_ij v_j`` (Shaw et al., arXiv:1803.02155, equation 3), by einsum, as
products, or by padding and reshaping (`skewed_tables`). The sum is computed with small integers, which floats represent
exactly, and compared with the operator; rows are compared as for scores
(`posexport.graph.passes.recognise.content_bias`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.clipped_values import CLIPPED_VALUES
from posexport.graph.ops.operator import Operator
from posexport.graph.partial import Subgraph, shape
from posexport.graph.passes.recognise import skewed_tables
from posexport.graph.passes.recognise.content_bias import Contents, gathers
from posexport.graph.queries import only, sizes

_BATCH, _TOKENS = 2, 5
_READ = Refusal("its probabilities are read elsewhere too")
_NO_DISTANCE = Refusal(
    "its probabilities also meet a table whose rows are not those of clipped distances in their order"
)


@dataclass(frozen=True)
class Values:
    """``operator``'s values of a ``table``, which ``sum`` adds to ``context``: the product of P and V, moved."""

    operator: Operator
    table: ir.Value
    sum: ir.Value
    context: ir.Value


def recognised(contents: Contents, probs: ir.Value, product: ir.Node) -> Values | Refusal:
    """The second reader of ``probs`` [B, H, T, S] as a value operator, or why it is none; the first is ``product``."""
    added = _sum(product)
    shape = sizes(probs) or ()
    if added is None or len(shape) not in (3, 4) or len(probs.uses()) != 2:
        return _READ
    context, of_table, total = added
    skewed = skewed_tables.of_values(contents.model, probs, product.outputs[0], context, total)
    if skewed is not None:
        return Values(CLIPPED_VALUES, skewed, total, context)
    if len(shape) != 4:
        return _READ
    tokens, size = shape[2], (sizes(product.outputs[0]) or (None,))[-1]
    nodes = set(gathers(of_table, [probs], size))
    gather = nodes.pop() if len(nodes) == 1 else None
    table, rows = (None, None) if gather is None else gather.inputs
    if gather is None or table is None or rows is None or not isinstance(tokens, str):
        return _READ
    if sizes(gather.outputs[0]) != (tokens, tokens, size) or not _adds(
        contents.model, probs, product.outputs[0], gather.outputs[0], context, total
    ):
        return _READ
    clipped = contents.operator(rows, tokens, int((sizes(table) or (0,))[0])) is CLIPPED_SCORES
    return Values(CLIPPED_VALUES, table, total, context) if clipped else _NO_DISTANCE


def _sum(product: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """The product with v as an operand of the sum, the other operand, and the sum."""
    *_, context = _moved(product.outputs[0])
    add = only(context)
    if add is None or add.domain or add.op_type != "Add":
        return None
    other = next((operand for operand in add.inputs if operand is not context), None)
    return None if other is None or only(other) is None else (context, other, add.outputs[0])


def _moved(value: ir.Value) -> Iterator[ir.Value]:
    """``value``, and as it is after what only moves its elements."""
    yield value
    while (node := only(value)) is not None and not node.domain and node.op_type in ("Transpose", "Reshape"):
        if node.inputs[0] is not value:
            return
        value = node.outputs[0]
        yield value


def _adds(
    model: ir.Model, probs: ir.Value, product: ir.Value, rows: ir.Value, context: ir.Value, total: ir.Value
) -> bool:
    """Whether ``total`` is the product moved, after the sum of probabilities and ``rows`` [T, S, D] was added to it."""
    free, names = [probs, product, rows], [size for size in sizes(probs) or () if isinstance(size, str)]
    subgraph = Subgraph(model, [total, context], free)
    lengths = dict(zip(names, (_BATCH, _TOKENS), strict=False))
    if not subgraph.is_closed or len(set(names)) != 2 or any(value.dtype != ir.DataType.FLOAT for value in free):
        return False
    rng = np.random.default_rng(0)
    p, o, e = (rng.integers(-4, 5, shape(value, lengths)).astype(np.float32) for value in free)
    whole = subgraph.run(dict(zip(free, (p, o, e), strict=True)), lengths)
    expected = subgraph.run(dict(zip(free, (p, o + np.einsum("bhij,ijd->bhid", p, e), e), strict=True)), lengths)
    return whole is not None and expected is not None and np.array_equal(whole[0], expected[1])

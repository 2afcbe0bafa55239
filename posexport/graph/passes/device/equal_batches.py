"""Expands the factors of MatMuls in position operators to equal batch axes, for CUDA."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.operator import DOMAIN, OPERATORS, WHOLE
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import producer

#: ranks of the inputs that attention passes to operators: rows, heads, tokens, channels or keys
_RANKS = {"q": 4, "k": 4, "probs": 4}


class EqualBatches(GraphPass):
    """The factors of a product have as many matrices as each other, in the functions of position operators.

    Before: ``MatMul(q [B, H, T, D], Transpose(window [W, D]))``
    After:  ``MatMul(q, Transpose(Expand(window, [B, H, W, D])))``

    ONNX Runtime multiplies by one call of the library where both factors are as many matrices, or the second is a
    single one. Elsewhere it copies a list of addresses to the device for every factor and for the product, also from
    inside a CUDA graph, and it may be another one when the graph is replayed. So a window of distances is
    copied for every row and a network's weights for every row of its input. Both are small compared with the scores.
    """

    name = "equal-batches"
    description = "products of position operators between as many matrices, one call of a device's library"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        return context.target.waits_to_branch

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts products."""
        changed = 0
        for function in model.functions.values():
            operator = OPERATORS.get(function.name.removeprefix(WHOLE)) if function.domain == DOMAIN else None
            for node in list(function) if operator is not None else ():
                if node.op_type == "MatMul" and not node.domain:
                    g = Builder.at(node, opset=model.opset_imports[""])
                    changed += _equalize(g, node)
        return PassResult(changed)


def _equalize(g: Builder, product: ir.Node) -> bool:
    """Whether the node has a factor that was copied."""
    first, second = product.inputs
    assert first is not None
    assert second is not None
    transpose = producer(second, "Transpose")
    if transpose is not None:
        order = transpose.attributes.get_ints("perm")
        axes, rank = len(order), _rank(first)
        if axes > 2 and rank is not None and rank > axes and list(order[-2:]) == [axes - 1, axes - 2]:
            window = transpose.inputs[0]
            assert window is not None
            last = [*range(rank - 2), rank - 1, rank - 2]
            product.replace_input_with(1, g.Transpose(_for_every(g, first, window), perm=last))
            return True
    elif first.producer() is None and first.name not in _RANKS:
        product.replace_input_with(0, _for_every(g, second, first))
        return True
    return False


def _for_every(g: Builder, other: ir.Value, factor: ir.Value) -> ir.Value:
    """``factor``, copied for every matrix of ``other``."""
    return g.Expand(factor, g.shape(g.Shape(other, end=-2), g.Shape(factor, start=-2)))


def _rank(value: ir.Value) -> int | None:
    """How many axes; None where that is not known."""
    node = value.producer()
    if node is None:
        return _RANKS.get(value.name or "")
    if node.op_type == "Add":
        ranks = [_rank(value) for value in node.inputs if value is not None]
        return max((rank for rank in ranks if rank is not None), default=None)
    sizes = producer(node.inputs[1], "Concat") if node.op_type == "Reshape" else None
    counts = [] if sizes is None else [_count(value) for value in sizes.inputs]
    return sum(count for count in counts if count) if counts and None not in counts else None


def _count(value: ir.Value | None) -> int | None:
    """The number of sizes in a part of a shape: of a Shape by its attributes, else 1."""
    node = producer(value, "Shape")
    if node is None:
        return 1
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    return end - start if end is not None and 0 <= start <= end else None

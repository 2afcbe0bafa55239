"""Recognises a layer of experts that are computed together, as `posexport.through.experts` writes them.

Shape letters: N tokens, J chosen experts of a token, E experts, C channels of the model, M channels of an expert.
"""

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.queries import constant, only, producer, width

#: ONNX Runtime's own operators
_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class ExpertLayer:
    """``last((SiLU(gate) * up * weights)``, gate and up of ``first(tokens)``.

    Attributes:
        first, last: the products of all experts, from [N, C] to [N, E 2 M] and from [N, E M] to [N, C].
        weights: of a token's experts, [N, E]; 0 of those that were not chosen.
        chosen: J.
    """

    first: ir.Node
    last: ir.Node
    weights: ir.Value
    chosen: int

    @property
    def count(self) -> int:
        """E."""
        count = width(self.weights)
        assert count is not None
        return count


def expert_layer(last: ir.Node, products: Collection[str]) -> "ExpertLayer | str | None":
    """The layer that the product ``last`` ends; why it is another one; None where there are no experts.

    ``products``: the operators that it may have.
    """
    # outwards in: the second product, of all experts' channels times their weights
    scaled = _before(last.inputs[0])
    if scaled is None or scaled.op_type != "Mul":
        return None
    weights = next((found for value in scaled.inputs if (found := _weights(value)) is not None), None)
    inner = next((node for value in scaled.inputs if (node := producer(value, "Mul")) is not None), None)
    if weights is None or inner is None:
        return None
    chosen, count = _chosen(weights), width(weights)
    if chosen is None or count is None or chosen >= count:
        return "every expert is chosen, or how many are is not known"
    # the gate, and the first product
    split = _gated(inner)
    if split is None:
        return "its gate is not SiLU of the first half of an expert's channels, times the second"
    first = _before(split.inputs[0])
    if first is None or first.op_type not in products:
        return "its first product has a bias"
    return ExpertLayer(first, last, weights, chosen)


def _before(value: ir.Value | None) -> ir.Node | None:
    """What computes ``value`` before it is reshaped, if nothing else reads it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Reshape" and only(node.outputs[0]) is not None:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node if node is not None and only(node.outputs[0]) is not None else None


def _weights(value: ir.Value | None) -> ir.Value | None:
    """[N, E] of [N, E, 1]: the sum over chosen experts."""
    # matrices of rows, which other passes make
    while (rows := producer(value, "Reshape")) is not None:
        value = rows.inputs[0]
    expanded = producer(value, "Unsqueeze")
    axes = None if expanded is None else constant(expanded.inputs[1])
    if expanded is None or axes is None or axes.tolist() not in ([-1], [len("NE")]):
        return None
    return expanded.inputs[0] if producer(expanded.inputs[0], "ReduceSum") is not None else None


def _chosen(weights: ir.Value) -> int | None:
    """How many experts a token has: ``ReduceSum(Where(chosen [N, J, 1] == arange(E), ..), 1)``."""
    total = producer(weights, "ReduceSum")
    axes = None if total is None else constant(total.inputs[1])
    where = None if total is None else producer(total.inputs[0], "Where")
    equal = None if where is None else producer(where.inputs[0], "Equal")
    expanded = None if equal is None else producer(equal.inputs[0], "Unsqueeze")
    if axes is None or axes.tolist() != [1] or expanded is None:
        return None
    return width(expanded.inputs[0])


def _gated(inner: ir.Node) -> ir.Node | None:
    """The Split whose first output goes through SiLU and is multiplied by the second."""
    for gate, up in (inner.inputs, inner.inputs[::-1]):
        activation = None if gate is None else gate.producer()
        split = producer(up, "Split")
        if activation is None or split is None or activation.inputs[0] is not split.outputs[0]:
            continue
        silu = (activation.domain, activation.op_type) == (_MICROSOFT, "QuickGelu")
        halves = len(split.outputs) == len("GU") and width(split.outputs[0]) == width(split.outputs[1])
        if silu and activation.attributes.get_float("alpha", 1.702) == 1 and halves and up is split.outputs[1]:
            return split
    return None

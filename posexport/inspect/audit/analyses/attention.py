"""Every attention of a graph of any tool: what is added to its scores, and how they are masked.

Broader than what posexport's passes recognise (`posexport.graph.passes.recognise`): these must be sure enough to
rewrite a graph, a rule of an audit must look at whatever another tool wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: fused operators: domain, type -> the input with the attention bias or mask that is added to the scores
FUSED = {
    ("", "Attention"): 3,
    ("com.microsoft", "Attention"): 5,
    ("com.microsoft", "MultiHeadAttention"): 5,
    ("com.microsoft", "GroupQueryAttention"): 10,
    ("com.microsoft", "PackedAttention"): 4,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): 4,
    ("com.microsoft", "SparseAttention"): None,
    ("com.microsoft", "PagedAttention"): None,
}
#: operators between the product and the Softmax, with the inputs that may be the scores
_THROUGH = {
    "Add": (0, 1),
    "Sub": (0,),
    "Mul": (0, 1),
    "Div": (0,),
    "Where": (1, 2),
    "Cast": (0,),
    "Reshape": (0,),
    "Tanh": (0,),
    "Clip": (0,),
    "Max": (0, 1),
    "Min": (0, 1),
    "Squeeze": (0,),
    "Unsqueeze": (0,),
    "Transpose": (0,),
    "Identity": (0,),
    "Slice": (0,),
    "GatherElements": (0,),
}
_PRODUCTS = ("MatMul", "Einsum", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "QGemm")


@dataclass
class Attention:
    """One attention.

    Attributes:
        node: the fused operator, or the Softmax.
        product: the product of queries and keys; None of a fused operator.
        added: what is added to the scores (masks and biases), nearest to the Softmax first.
        fills: (condition, value where scores are replaced, Where node).
        scores: the values between product and Softmax.
    """

    node: ir.Node
    product: ir.Node | None = None
    added: list[ir.Value] = field(default_factory=list)
    fills: list[tuple[ir.Value, ir.Value, ir.Node]] = field(default_factory=list)
    scores: list[ir.Value] = field(default_factory=list)

    @property
    def fused(self) -> bool:
        return self.product is None


def adders(attention: Attention, added: ir.Value) -> list[tuple[ir.Node, int]]:
    """The nodes that add a mask or bias to the scores of an attention, each with the input that it is."""
    return [
        (user, index) for user, index in added.uses() if user is attention.node or user.outputs[0] in attention.scores
    ]


def lowest_score(dtype: ir.DataType) -> NDArray[Any]:
    """Half of the lowest number of a type: a sum with a score, or with itself, does not overflow."""
    lowest = ml_dtypes.finfo(dtype.numpy()).min  # type: ignore[no-untyped-call]
    return np.asarray(lowest / 2, dtype.numpy())


def attentions(nodes: Sequence[ir.Node]) -> list[Attention]:
    """All attentions in the order of ``nodes``."""
    return list(_attentions(nodes))


def _attentions(nodes: Sequence[ir.Node]) -> Iterator[Attention]:
    for node in nodes:
        if (node.domain, node.op_type) in FUSED:
            place = FUSED[node.domain, node.op_type]
            bias = node.inputs[place] if place is not None and len(node.inputs) > place else None
            yield Attention(node, added=[bias] if bias is not None else [])
        elif node.op_type in ("Softmax", "QLinearSoftmax", "BiasSoftmax") and (found := _of_softmax(node)):
            yield found


def _of_softmax(node: ir.Node) -> Attention | None:
    """The attention whose probabilities ``node`` computes; None if it is another Softmax."""
    attention = Attention(node)
    if node.op_type == "BiasSoftmax" and node.inputs[1] is not None:
        attention.added.append(node.inputs[1])
    value = node.inputs[0]
    while value is not None:
        attention.scores.append(value)
        step = value.producer()
        if step is None:
            return None
        if step.op_type in _PRODUCTS or (step.op_type == "Gemm" and not step.domain):
            # a projection has a weight; scores are a product of two activations
            if any(map(_is_weight, step.inputs[:2])):
                return None
            attention.product = step
            return attention
        value = _before(step, attention)
    return None


def _before(step: ir.Node, attention: Attention) -> ir.Value | None:
    """The scores that ``step`` computes scores from; notes what it adds."""
    places = _THROUGH.get(step.op_type)
    if places is None or step.domain:
        return None
    candidates = [step.inputs[place] for place in places if place < len(step.inputs)]
    scores = [value for value in candidates if value is not None and _leads_to_product(value)]
    if not scores:
        return None
    before = scores[0]
    if step.op_type in ("Add", "Sub"):
        attention.added += [value for value in step.inputs if value is not None and value is not before]
    elif step.op_type == "Where" and step.inputs[0] is not None:
        fill = next(value for value in step.inputs[1:] if value is not None and value is not before)
        attention.fills.append((step.inputs[0], fill, step))
    return before


def _leads_to_product(value: ir.Value, depth: int = 24) -> bool:
    node = value.producer()
    if node is None or not depth:
        return False
    if node.op_type in _PRODUCTS:
        return not any(map(_is_weight, node.inputs[:2]))
    if node.domain or node.op_type not in _THROUGH or node.op_type == "GatherElements":
        return False
    return any(
        _leads_to_product(before, depth - 1)
        for place in _THROUGH[node.op_type]
        if place < len(node.inputs) and (before := node.inputs[place]) is not None
    )


def _is_weight(value: ir.Value | None) -> bool:
    """Whether an operand is a constant, maybe a dequantized one."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type in ("DequantizeLinear", "Transpose", "Identity", "Cast"):
        return _is_weight(node.inputs[0])
    return value is not None and ir.convenience.get_const_tensor(value) is not None

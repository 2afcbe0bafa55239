"""Mixtures of experts where each token is processed by its own experts only (Shazeer et al., arXiv:1701.06538).

The graph of transformers' models computes every expert for every token, with weight 0 where it was not chosen
(`posexport.through.experts`): right for any routing, and E / J times the work. ONNX Runtime's operators MoE and QMoE
gather each expert's tokens, and read the weights of the chosen experts alone.

They choose the J largest of a softmax over their routing scores. From the logarithms of the weights that the model's
own routing gave (softmax or sigmoid, limited to groups, biased ...) they take the same experts, with weights divided by
their sum, which multiplies the result. The weights of a token have one sign, which a learned scale of all of them
(Inkling) may make negative. A token whose weights are all 0 gets zeros, though its scores are all minus infinity.

Shape letters: N tokens, J chosen experts of a token, E experts, C channels of the model, M channels of an expert.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.graph.builder import Builder
from posexport.graph.edits import initializer, replace
from posexport.graph.queries import FOLDED_FROM, constant, names_of, only, producer, width
from posexport.passes.graph_pass import Context, GraphPass, PassResult
from posexport.targets.target import MICROSOFT, Target

MOE, QMOE = "MoE", "QMoE"
_Array = NDArray[np.generic]
#: of weights that QMoE multiplies by float32 (onnxruntime 1.31); with 8 its results are off by 1e-2
_BITS = 4


class RoutedExperts(GraphPass):
    """Compute the chosen experts only, by com.microsoft MoE.

    Before: ``h = Reshape(x W1 [C, E 2 M]); (SiLU(h_gate) * h_up * weights [N, E, 1]) W2 [E M, C]``
    After:  ``MoE(x, Log(Abs(weights)), W1 [E, 2 M, C], W2 [E, C, M]) * ReduceSum(weights)``

    A layer of 64 experts, 8 of them chosen: 0.11 of the time for one token and 0.27 for 512 (onnxruntime 1.31).
    """

    name = "routed-experts"
    description = "mixtures of experts by an operator that computes the chosen ones only"
    is_listed_idle = False

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft(MOE) or target.needs_kernel(MOE, MICROSOFT)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts layers of experts."""
        return _routed(model, ("MatMul", "Gemm"), MOE)


def route_quantized(model: ir.Model, target: Target) -> PassResult:
    """As `RoutedExperts`, of products whose weights are quantized in blocks: by com.microsoft QMoE.

    It reads the same integers and scales, in another order, and rounds no activations, as MatMulNBits does.
    """
    if target.needs_microsoft(QMOE) or target.needs_kernel(QMOE, MICROSOFT):
        return PassResult()
    result = _routed(model, ("MatMulNBits",), QMOE)
    RemoveUnusedNodesPass()(model)
    return result


def _routed(model: ir.Model, products: Collection[str], operator: str) -> PassResult:
    layers = [_layer(node, products) for node in model.graph if node.op_type in products]
    return PassResult.of(
        [_route(model.graph, each, operator) if isinstance(each, _Layer) else each for each in layers if each]
    )


def _route(graph: ir.Graph, layer: "_Layer", operator: str) -> str | None:
    """Write ``operator`` in the place of a layer; the reason where it stays."""
    first, last = _weights(layer.first), _weights(layer.last)
    if first is None or last is None:
        return "its products have a bias or zero points, or their weights are read elsewhere too"
    attributes: dict[str, Any] = {}
    if operator == QMOE:
        bits, size = (layer.first.attributes.get_int(name, 0) or 0 for name in ("bits", "block_size"))
        if bits != _BITS:
            return f"QMoE rounds what it multiplies by weights of {bits} bits"
        channels = [
            (node.attributes.get_int("K", 0) or 0) // parts
            for node, parts in zip((layer.first, layer.last), (1, layer.count), strict=True)
        ]
        if any(count % size for count in channels):
            return f"channels of the model and of an expert must be multiples of a block's size, {size}"
        attributes = {"expert_weight_bits": bits, "block_size": size}
    halves = [_stored(graph, weight, layer.count, _interleaved) for weight in first]
    wholes = [_stored(graph, weight, layer.count, _by_expert) for weight in last]
    g = Builder.at(layer.last)
    output = layer.last.outputs[0]
    chosen = g.op(
        operator,
        *(layer.first.inputs[0], g.Log(g.Abs(layer.weights)), *halves, None, *wholes),
        domain=MICROSOFT,
        shape=output.shape,
        k=layer.chosen,
        activation_type="swiglu",
        # SiLU: alpha is a factor of the sigmoid's argument, beta is added to the other half
        swiglu_fusion=1,
        activation_alpha=1.0,
        activation_beta=0.0,
        normalize_routing_weights=1,
        **attributes,
    )
    chosen.type = output.type
    replace(output, g.Mul(chosen, g.ReduceSum(layer.weights, [-1])))
    return None


@dataclass(frozen=True)
class _Layer:
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
        """The number of experts."""
        count = width(self.weights)
        assert count is not None
        return count


def _layer(last: ir.Node, products: Collection[str]) -> "_Layer | str | None":
    """The layer that the product ``last`` ends; why it is another one; None where there are no experts.

    ``products``: the operators that it may have.
    """
    # outwards in: the second product, of all experts' channels times their weights
    scaled = _before(last.inputs[0])
    if scaled is None or scaled.op_type != "Mul":
        return None
    weights = next((found for value in scaled.inputs if (found := _token_weights(value)) is not None), None)
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
    return _Layer(first, last, weights, chosen)


def _before(value: ir.Value | None) -> ir.Node | None:
    """What computes ``value`` before it is reshaped, if nothing else reads it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Reshape" and only(node.outputs[0]) is not None:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node if node is not None and only(node.outputs[0]) is not None else None


def _token_weights(value: ir.Value | None) -> ir.Value | None:
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
        silu = (activation.domain, activation.op_type) == (MICROSOFT, "QuickGelu")
        halves = len(split.outputs) == len("GU") and width(split.outputs[0]) == width(split.outputs[1])
        if silu and activation.attributes.get_float("alpha", 1.702) == 1 and halves and up is split.outputs[1]:
            return split
    return None


@dataclass(frozen=True)
class _Weight:
    """A tensor of a product's weight: of each of its ``rows``, the outputs, floats, integers or scales."""

    value: ir.Value
    rows: int
    transposed: bool = False

    def read(self) -> _Array:
        """[rows, ..]"""
        assert self.value.const_value is not None
        array = np.asarray(self.value.const_value.numpy())
        return array.T if self.transposed else array.reshape(self.rows, -1)


def _weights(product: ir.Node) -> list[_Weight] | None:
    """The tensors of a product's weight; None if it has other operands, or if something else reads one."""
    x, *operands = product.inputs
    values = [value for value in operands if value is not None]
    alone = all(value.is_initializer() and not value.is_graph_input() and only(value) is product for value in values)
    if x is None or not alone or len(values) != (2 if product.op_type == "MatMulNBits" else 1):
        return None
    if product.op_type == "MatMulNBits":
        rows = product.attributes.get_int("N", 0) or 0
        return [_Weight(value, rows) for value in values]
    (value,) = values
    transposed = product.op_type == "MatMul" or product.attributes.get_int("transB", 0) == 0
    scaled = product.attributes.get_float("alpha", 1.0) != 1 or product.attributes.get_int("transA", 0) != 0
    if value.const_value is None or len(value.const_value.shape) != len("NK") or scaled:
        return None
    return [_Weight(value, int(value.const_value.shape.numpy()[1 if transposed else 0]), transposed)]


def _interleaved(rows: _Array, count: int) -> _Array:
    """[E, 2 M, ..] of [E 2 M, ..]: a gate's row before each row of the other half, as the operators read them."""
    halves = rows.reshape(count, 2, len(rows) // (2 * count), -1)
    return halves.swapaxes(1, 2).reshape(count, len(rows) // count, -1)


def _by_expert(rows: _Array, count: int) -> _Array:
    """[E, C, ..] of [C, E ..]."""
    return rows.reshape(len(rows), count, -1).swapaxes(0, 1)


def _stored(graph: ir.Graph, weight: _Weight, count: int, order: Callable[[_Array, int], _Array]) -> ir.Value:
    """``weight`` in another order, which is made when the file is written."""
    tensor = weight.value.const_value
    assert tensor is not None
    rows = weight.rows // count if order is _interleaved else weight.rows

    def made() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(order(weight.read(), count)))

    lazy = ir.LazyTensor(made, tensor.dtype, ir.Shape((count, rows, tensor.size // (count * rows))))
    value = initializer(graph, f"{weight.value.name}_by_expert", lazy)
    value.metadata_props[FOLDED_FROM] = repr(list(names_of(weight.value)))
    return value

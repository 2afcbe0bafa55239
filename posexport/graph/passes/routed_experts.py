"""Mixtures of experts in which every token is processed by the chosen experts only (Shazeer et al., arXiv:1701.06538).

The exported graph of a transformers model computes every expert for every token, and multiplies the experts that were
not chosen by 0 (`posexport.through.experts`). This is right for any routing, but E / J times the work. ONNX Runtime's
operators MoE and QMoE gather the tokens of each expert, and read the weights of the chosen experts only.

Both operators select the J largest values of a softmax over their routing scores. Here the scores are the logarithms
of the routing weights that the model computes (softmax or sigmoid, limited to groups, biased ...). The operators then
choose the same experts, with routing weights divided by their sum; the result is multiplied by that sum. The routing
weights of a token have the same sign; a learned scale (Inkling) may make it negative. If all routing weights of a
token are 0, its output is 0, although all its scores are minus infinity.

Shape letters: N tokens, J chosen experts of a token, E experts, C channels of the model, M channels of an expert.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.refusal import Refusal
from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.edits import initializer
from posexport.graph.edits import replace as replace_value
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import FOLDED_FROM, constant, is_weight, names_of, number, only, producer, width

MOE, QMOE = "MoE", "QMoE"
_Array = NDArray[np.generic]
#: bits of the weights that QMoE multiplies by float32 (onnxruntime 1.31); with 8 bits its results are off by 1e-2
_BITS = 4
#: larger than the number of channels of any expert
_NEVER = 1 << 40


class RoutedExperts(GraphPass):
    """Compute only the chosen experts, with com.microsoft MoE.

    Before: ``h = Reshape(x W1 [C, E 2 M]); (SiLU(h_gate) * h_up * weights [N, E, 1]) W2 [E M, C]``
    After:  ``MoE(x, Log(Abs(weights)), W1 [E, 2 M, C], W2 [E, C, M]) * ReduceSum(weights)``

    GPT-OSS's gate (OpenAI, arXiv:2508.10925, section 2.3) has limits, biases, and channels that alternate:
    ``swish(min(gate, limit)) * (clamp(up, limit) + 1)``, the argument of the sigmoid times 1.702.

    A layer with 64 experts, of which 8 are chosen, takes 0.11 of the time for one token and 0.27 for 512 tokens
    (onnxruntime 1.31).
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
    """As `RoutedExperts`, for products with weights quantized in blocks (MatMulNBits), with com.microsoft QMoE.

    QMoE uses the same integers and scales in another order. Like MatMulNBits, it does not round activations.
    """
    if target.needs_microsoft(QMOE) or target.needs_kernel(QMOE, MICROSOFT):
        return PassResult()
    result = _routed(model, ("MatMulNBits",), QMOE)
    RemoveUnusedNodesPass()(model)
    return result


def _routed(model: ir.Model, products: Collection[str], operator: str) -> PassResult:
    layers = [_layer(node, products) for node in model.graph if node.op_type in products]
    return PassResult.of(
        [
            layer.reason if isinstance(layer, Refusal) else _route(model.graph, layer, operator)
            for layer in layers
            if layer
        ]
    )


def _route(graph: ir.Graph, layer: "_Layer", operator: str) -> str | None:
    """Replace a layer by ``operator``; the reason if it is not replaced."""
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
    gate = layer.gate
    if operator == QMOE and (gate.alternates or gate.bias is not None):
        return "the proof does not read quantized channels that alternate, or have a bias"
    if gate.limit is not None:
        attributes["swiglu_limit"] = gate.limit
    gate_up = [
        _stored(graph, weight, layer.count, _alternating if gate.alternates else _interleaved) for weight in first
    ]
    down = [_stored(graph, weight, layer.count, _by_expert) for weight in last]
    g = Builder.at(layer.last)
    output = layer.last.outputs[0]
    chosen = g.op(
        operator,
        *(layer.first.inputs[0], g.Log(g.Abs(layer.weights)), *gate_up, gate.bias, *down),
        domain=MICROSOFT,
        shape=output.shape,
        k=layer.chosen,
        activation_type="swiglu",
        swiglu_fusion=1,
        activation_alpha=gate.alpha,
        activation_beta=gate.beta,
        normalize_routing_weights=1,
        **attributes,
    )
    chosen.type = output.type
    replace_value(output, g.Mul(chosen, g.ReduceSum(layer.weights, [-1])))
    return None


@dataclass(frozen=True)
class _Gate:
    """``Swish(gate, alpha) * (up + beta)``, where gate and up are halves of the first projection of an expert.

    Attributes:
        gate_up: the tensor that contains both, [N, E, 2 M].
        alternates: the channels of gate and up alternate; if false, the gate is the first half.
        alpha: factor of the sigmoid's argument.
        beta: added to ``up``.
        limit: the largest value of ``gate`` and the largest magnitude of ``up``; None if neither is clipped.
        bias: [E, 2 M], added to ``gate_up``.
    """

    gate_up: ir.Value
    alternates: bool
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None
    bias: ir.Value | None = None


@dataclass(frozen=True)
class _Layer:
    """``last(Swish(gate) * up * weights)``, where ``first(tokens)`` computes gate and up.

    Attributes:
        first, last: the projections of all experts, from [N, C] to [N, E 2 M] and from [N, E M] to [N, C].
        gate: the nodes between the two projections.
        weights: routing weights, [N, E]; 0 for experts that were not chosen.
        chosen: J, the number of chosen experts of a token.
    """

    first: ir.Node
    last: ir.Node
    gate: _Gate
    weights: ir.Value
    chosen: int

    @property
    def count(self) -> int:
        """E, the number of experts."""
        count = width(self.weights)
        assert count is not None
        return count


def _layer(last: ir.Node, products: Collection[str]) -> "_Layer | Refusal | None":
    """The layer of experts that ends with the product ``last``.

    Args:
        last: a product.
        products: op types that the layer's products may have.

    Returns:
        The layer; the reason if the layer of experts is not supported; None if ``last`` belongs to no experts.
    """
    # from the output to the input: the second product reads the channels of all experts times the routing weights
    scaled = _before(last.inputs[0])
    if scaled is None or scaled.op_type != "Mul":
        return None
    candidates = (_token_weights(value) for value in scaled.inputs)
    weights = next((value for value in candidates if value is not None), None)
    inner = next((node for value in scaled.inputs if (node := producer(value, "Mul")) is not None), None)
    if weights is None or inner is None:
        return None
    chosen, count = _chosen(weights), width(weights)
    if chosen is None or count is None or chosen >= count:
        return Refusal("every expert is chosen, or how many are is not known")
    # the gate, and the first product
    gate = _gated(inner)
    if gate is None:
        return Refusal("the operator does not have its gate")
    first = gate.gate_up.producer()
    while first is not None and first.op_type == "Reshape":
        first = _before(first.inputs[0])
    if first is None or first.op_type not in products:
        return Refusal("its first product has a bias")
    return _Layer(first, last, gate, weights, chosen)


def _before(value: ir.Value | None) -> ir.Node | None:
    """The node that computes ``value``, with Reshape nodes skipped; None if another node uses a result of the chain."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Reshape" and only(node.outputs[0]) is not None:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node if node is not None and only(node.outputs[0]) is not None else None


def _token_weights(value: ir.Value | None) -> ir.Value | None:
    """The routing weights [N, E], a sum over the chosen experts, from ``value`` [N, E, 1]."""
    # other passes insert Reshape nodes
    while (rows := producer(value, "Reshape")) is not None:
        value = rows.inputs[0]
    expanded = producer(value, "Unsqueeze")
    axes = None if expanded is None else constant(expanded.inputs[1])
    if expanded is None or axes is None or axes.tolist() not in ([-1], [len("NE")]):
        return None
    return expanded.inputs[0] if producer(expanded.inputs[0], "ReduceSum") is not None else None


def _chosen(weights: ir.Value) -> int | None:
    """J, from the pattern ``ReduceSum(Where(chosen [N, J, 1] == arange(E), ..), 1)``."""
    total = producer(weights, "ReduceSum")
    axes = None if total is None else constant(total.inputs[1])
    where = None if total is None else producer(total.inputs[0], "Where")
    equal = None if where is None else producer(where.inputs[0], "Equal")
    expanded = None if equal is None else producer(equal.inputs[0], "Unsqueeze")
    if axes is None or axes.tolist() != [1] or expanded is None:
        return None
    return width(expanded.inputs[0])


def _gated(inner: ir.Node) -> _Gate | None:
    """The gate that ends with the Mul ``inner``; None if the operator cannot compute it."""
    for gate, up in (inner.inputs, inner.inputs[::-1]):
        swish = _swish(gate)
        if swish is None:
            continue
        x, alpha = swish
        y, beta = _plus(up)
        x, y, limit = _limited(x, y)
        gate_up = _gate_up(x, y)
        if gate_up is not None:
            return _with_bias(_Gate(*gate_up, alpha, beta, limit))
    return None


def _swish(value: ir.Value | None) -> tuple[ir.Value | None, float] | None:
    """``x`` and ``alpha`` of ``x * Sigmoid(alpha * x)``."""
    node = None if value is None else value.producer()
    if node is not None and (node.domain, node.op_type) == (MICROSOFT, "QuickGelu"):
        return node.inputs[0], node.attributes.get_float("alpha", 1.702) or 0.0
    if (product := producer(value, "Mul")) is None:
        return None
    for x, other in (product.inputs, product.inputs[::-1]):
        sigmoid = producer(other, "Sigmoid")
        scaled = None if sigmoid is None else producer(sigmoid.inputs[0], "Mul")
        factors = [] if scaled is None else [number(factor) for factor in scaled.inputs if factor is not x]
        if scaled is not None and x in scaled.inputs and len(factors) == 1 and factors[0] is not None:
            return x, factors[0]
    return None


def _plus(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """``x`` and ``beta`` of ``x + beta``."""
    total = producer(value, "Add")
    for x, other in () if total is None else (total.inputs, total.inputs[::-1]):
        if (beta := number(other)) is not None:
            return x, beta
    return value, 0.0


def _limited(gate: ir.Value | None, up: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None, float | None]:
    """Gate and up before Clip, and the limit; both unchanged and None if the operator does not support the limits."""
    clips = [clip for value in (gate, up) if (clip := producer(value, "Clip")) is not None]
    bounds = [[number(value) for value in (*clip.inputs[1:], None, None)[:2]] for clip in clips]
    limit = bounds[0][1] if len(bounds) == len("GU") else None
    if limit is None or bounds != [[None, limit], [-limit, limit]]:
        return gate, up, None
    return clips[0].inputs[0], clips[1].inputs[0], limit


def _gate_up(gate: ir.Value | None, up: ir.Value | None) -> tuple[ir.Value, bool] | None:
    """The tensor that contains gate and up, and whether they alternate; None if other nodes use the tensor too."""
    split = producer(gate, "Split")
    if split is not None and split is producer(up, "Split"):
        equal = len(split.outputs) == len("GU") and width(split.outputs[0]) == width(split.outputs[1])
        whole = split.inputs[0]
        known = equal and gate is split.outputs[0] and up is split.outputs[1] and whole is not None
        return (whole, False) if known and whole is not None and only(whole) is split else None
    slices = [producer(value, "Slice") for value in (gate, up)]
    wholes = {None if node is None else node.inputs[0] for node in slices}
    whole = wholes.pop() if len(wholes) == 1 else None
    if whole is None or whole.is_graph_output() or {user for user, _ in whole.uses()} != set(slices):
        return None
    # alternating: the slices contain the even and the odd channels
    for start, node in enumerate(slices):
        numbers = [] if node is None else [number(value) for value in node.inputs[1:]]
        if len(numbers) != len(("start", "end", "axis", "step")) or (numbers[0], numbers[3]) != (start, 2):
            return None
        if numbers[2] not in (-1, len("NE")) or (numbers[1] or 0) < (width(whole) or _NEVER):
            return None
    return whole, True


def _with_bias(gate: _Gate) -> _Gate:
    """``gate`` with the bias that is added to ``gate_up``, if there is one."""
    total = producer(gate.gate_up, "Add")
    for x, bias in () if total is None else (total.inputs, total.inputs[::-1]):
        # the bias of every expert, in the order of the weights
        if x is not None and is_weight(bias, len("EM")) and gate.alternates and only(x) is total:
            return replace(gate, gate_up=x, bias=bias)
    return gate


@dataclass(frozen=True)
class _Weight:
    """A weight of a product, or the integers or scales of a quantized one; ``rows``: number of output channels."""

    value: ir.Value
    rows: int
    transposed: bool = False

    def read(self) -> _Array:
        """The values as an array [rows, ..]; the first axis is that of the output channels."""
        assert self.value.const_value is not None
        array = np.asarray(self.value.const_value.numpy())
        return array.T if self.transposed else array.reshape(self.rows, -1)


def _weights(product: ir.Node) -> list[_Weight] | None:
    """The weight of a product: one tensor, or integers and scales.

    None if the product has other operands, such as a bias, or if another node uses one of the tensors.
    """
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
    """Reorders [E 2 M, ..] to [E, 2 M, ..] so that rows of gate and up alternate, the order of both operators."""
    gate_up = rows.reshape(count, 2, len(rows) // (2 * count), -1)
    return gate_up.swapaxes(1, 2).reshape(count, len(rows) // count, -1)


def _alternating(rows: _Array, count: int) -> _Array:
    """Reshapes [E 2 M, ..] to [E, 2 M, ..] for weights in which rows of gate and up already alternate."""
    return rows.reshape(count, len(rows) // count, -1)


def _by_expert(rows: _Array, count: int) -> _Array:
    """Reorders [C, E ..] to [E, C, ..]: one matrix per expert."""
    return rows.reshape(len(rows), count, -1).swapaxes(0, 1)


def _stored(graph: ir.Graph, weight: _Weight, count: int, order: Callable[[_Array, int], _Array]) -> ir.Value:
    """An initializer with the values of ``weight`` in another order; they are computed when the file is written."""
    tensor = weight.value.const_value
    assert tensor is not None
    rows = weight.rows if order is _by_expert else weight.rows // count

    def reordered() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(order(weight.read(), count)))

    lazy = ir.LazyTensor(reordered, tensor.dtype, ir.Shape((count, rows, tensor.size // (count * rows))))
    value = initializer(graph, f"{weight.value.name}_by_expert", lazy)
    value.metadata_props[FOLDED_FROM] = repr(list(names_of(weight.value)))
    return value

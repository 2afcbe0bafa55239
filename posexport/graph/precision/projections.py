"""Finds the linear projections of a graph: x W, x W + b, with W constant, and those that compute logits.

In the main graph, in branches and loop bodies, and in functions, where a weight is a Constant of the body or an input
that every call passes an initialiser. ONNX Runtime's quantisers skip all but the first silently.

Weights that compute logits keep 8 bits: no later layer averages their errors out. The name of the output identifies
them, not sizes: definitions call ``logits`` the output of a head over a vocabulary, characters or classes, and a
vocabulary may be as large as any layer, or smaller than all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.spec import DOMAIN, Interface
from posexport.graph.dataflow import content_values, reachable
from posexport.graph.queries import bodies, names_of, only, stays_float, with_bodies

#: fewer channels on either side are gates and classification heads: nothing is gained, and all their error is seen
LEAST_CHANNELS = 16
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: operators of a projection -> its domain
_PRODUCTS = {("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul")}


@dataclass(frozen=True)
class Weight:
    """A constant matrix, and where it is kept.

    Attributes:
        value: what nodes read: an initialiser, a Constant's output or a function's input.
        stored: its tensors: one, or for a function's input one for every call.
        transposed: it is stored as [N, K], as PyTorch does.
        names: of the parameters that it was made from, by which ``--keep-float`` knows it; several where packed.
        calls: of the function that has ``value`` as an input, in the order of ``stored``.
    """

    value: ir.Value
    stored: tuple[ir.TensorProtocol, ...]
    transposed: bool
    names: tuple[str, ...]
    calls: tuple[ir.Node, ...] = ()

    @property
    def name(self) -> str:
        """For new tensors: the parameter's name, of packed ones the first's with ``_packed``."""
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]}_packed"

    @property
    def sizes(self) -> tuple[int, int]:
        """K and N: channels of the input and of the output."""
        rows, columns = (int(size) for size in self.stored[0].shape)  # type: ignore[arg-type]  # constants have sizes
        return (columns, rows) if self.transposed else (rows, columns)

    def array(self, call: int = 0) -> NDArray[np.float32]:
        """The matrix [K, N] in float32, read again at every call so that nothing holds it twice."""
        array = np.asarray(self.stored[call].numpy()).astype(np.float32, copy=False)
        return array.T if self.transposed else array


@dataclass(frozen=True)
class Projection:
    """A linear projection.

    Attributes:
        container: the graph, body or function's graph that its nodes are in.
        product: MatMul, Gemm or FusedMatMul.
        x: the input, [..., K].
        bias: [N], of Gemm or of the Add that alone reads the product; None: it has none, or none that is constant.
        add: that Add.
        positional: ``x`` is computed from positions alone: learned tables and waves, not tokens.
    """

    container: ir.Graph
    product: ir.Node
    x: ir.Value
    weight: Weight
    bias: ir.Value | None
    add: ir.Node | None
    positional: bool

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that a quantised projection replaces; readers first."""
        return (self.product,) if self.add is None else (self.add, self.product)

    @property
    def output(self) -> ir.Value:
        return self.nodes[0].outputs[0]

    @property
    def small(self) -> bool:
        """Fewer than `LEAST_CHANNELS` on either side."""
        return min(self.weight.sizes) < LEAST_CHANNELS


def projections(model: ir.Model, interface: Interface) -> list[Projection]:
    """All linear projections, in the order of the nodes, including those that stay in float.

    Not in posexport's functions: constants passed to them are position tables and relative position projections, which
    stay in float on purpose. Not a Gemm that scales or transposes x, or has a third input that is no constant [N].

    ``interface``: the graph's inputs; their roles tell content from positions.
    """
    content = content_values(model, {spec.name: spec.role for spec in interface.inputs})
    calls = _calls(model)
    every = []
    for container in containers(model):
        for node in container:
            every += _projection(container, node, content, calls)
    return every


def containers(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, functions of other domains than posexport's, and all bodies in them."""
    tops = [model.graph]
    tops += [function.graph for function in model.functions.values() if function.domain != DOMAIN]
    for top in tops:
        yield from with_bodies(top)


#: operators that give a part of a weight, or its elements in another order
_MOVES = ("Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")


def batches(model: ir.Model) -> list[tuple[str, ...]]:
    """The names of weights of several matrices [.., K, N], such as those of experts, that products read."""
    stored: dict[ir.Value, ir.TensorProtocol] = {}
    for node in (node for container in containers(model) for node in container):
        if (node.domain, node.op_type) not in _PRODUCTS:
            continue
        value = node.inputs[1]
        while value is not None and (tensor := tensor_of(value)) is None:
            before = value.producer()
            value = before.inputs[0] if before is not None and before.op_type in _MOVES else None
        if value is not None and tensor is not None:
            stored[value] = tensor
    return [
        names_of(value)
        for value, tensor in stored.items()
        if len(tensor.shape) > 2 and min(tensor.shape.numpy()[-2:]) >= LEAST_CHANNELS
    ]


def quantizable(every: Sequence[Projection], patterns: Sequence[str]) -> list[Projection]:
    """The projections that may be quantised: not small, not positional, and no name matches a pattern.

    A weight with several readers stays in float if any of them must: else both forms would be in the file.
    """
    excluded = {
        projection.weight.value
        for projection in every
        if projection.positional or projection.small or stays_float(projection.weight.names, patterns)
    }
    return [projection for projection in every if projection.weight.value not in excluded]


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initialiser or a Constant node; None for anything else, also for an input with a default."""
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain or "value" not in node.attributes:
        return None
    attribute = node.attributes["value"]
    return None if attribute.is_ref() else attribute.as_tensor()


def _calls(model: ir.Model) -> Mapping[ir.Value, Sequence[tuple[ir.Node, ir.Value | None]]]:
    """The calls of every function, by the function's inputs: the node and the argument."""
    passed: dict[ir.Value, list[tuple[ir.Node, ir.Value | None]]] = {}
    for container in containers(model):
        for node in container:
            function = model.functions.get(node.op_identifier())
            for place, inner in enumerate(() if function is None else function.inputs):
                operand = node.inputs[place] if place < len(node.inputs) else None
                passed.setdefault(inner, []).append((node, operand))
    return passed


def _projection(
    container: ir.Graph,
    node: ir.Node,
    content: set[ir.Value],
    calls: Mapping[ir.Value, Sequence[tuple[ir.Node, ir.Value | None]]],
) -> list[Projection]:
    """The projection that a node computes; empty if it is none."""
    if (node.domain, node.op_type) not in _PRODUCTS or _scaled(node) or node.inputs[0] is None:
        return []
    weight = _weight(node, calls)
    if weight is None:
        return []
    channels = weight.sizes[1]
    third = node.inputs[2] if len(node.inputs) > 2 else None
    if third is not None and not _is_bias(third, channels, calls):
        return []
    bias, add = (third, None) if third is not None else _added(node, channels, calls)
    positional = node.inputs[0] not in content
    return [Projection(container, node, node.inputs[0], weight, bias, add, positional)]


def _scaled(node: ir.Node) -> bool:
    """Whether a factor or a transposition of x makes it something else than x W + b."""
    numbers = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    transposed = [node.attributes.get_int(name, 0) for name in ("transA", "transBatchA", "transBatchB")]
    return any(factor != 1 for factor in numbers) or any(transposed)


def _weight(node: ir.Node, calls: Mapping[ir.Value, Sequence[tuple[ir.Node, ir.Value | None]]]) -> Weight | None:
    value, transposed = node.inputs[1], bool(node.attributes.get_int("transB", 0))
    before = None if value is None else value.producer()
    if before is not None and before.op_type == "Transpose" and not before.domain:
        # as in a head that is tied to the embeddings: both read the same tensor
        value, transposed = before.inputs[0], not transposed
    if value is None:
        return None
    tensor = tensor_of(value)
    if tensor is not None:
        weight = Weight(value, (tensor,), transposed, names_of(value))
    elif value in calls:
        arguments = [argument for _, argument in calls[value]]
        tensors = [tensor_of(argument) for argument in arguments]
        stored = tuple(array for array in tensors if array is not None)
        if len(stored) < len(tensors) or not stored or len({tuple(array.shape) for array in stored}) > 1:
            return None
        names = [name for argument in arguments if argument is not None for name in names_of(argument)]
        nodes = tuple(call for call, _ in calls[value])
        weight = Weight(value, stored, transposed, tuple(dict.fromkeys(names)), nodes)
    else:
        return None
    matrix = all(len(array.shape) == 2 and array.dtype in _FLOATS for array in weight.stored)
    return weight if matrix else None


def _added(
    node: ir.Node, channels: int, calls: Mapping[ir.Value, Sequence[tuple[ir.Node, ir.Value | None]]]
) -> tuple[ir.Value | None, ir.Node | None]:
    """The constant bias and the Add that is the only reader of the product, in the same graph."""
    add = only(node.outputs[0])
    if add is None or add.op_type != "Add" or add.domain or add.graph is not node.graph:
        return None, None
    other = next((value for value in add.inputs if value is not node.outputs[0]), None)
    return (other, add) if other is not None and _is_bias(other, channels, calls) else (None, None)


def _is_bias(
    value: ir.Value, channels: int, calls: Mapping[ir.Value, Sequence[tuple[ir.Node, ir.Value | None]]]
) -> bool:
    tensors = [tensor_of(value)] if value not in calls else [tensor_of(argument) for _, argument in calls[value]]
    return all(tensor is not None and tuple(tensor.shape) == (channels,) for tensor in tensors)


#: of outputs, alone or after an underscore
LOGITS = "logits"
#: elementwise operators after a head's product (bias, scale, soft cap), and operators that move logits
_AFTER_HEAD = {"Add", "Div", "Mul", "Sub", "Tanh", "Where"}
_AFTER_HEAD |= {"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def logit_weights(outputs: Iterable[ir.Value], every: Sequence[Projection], content: set[ir.Value]) -> set[ir.Value]:
    """The weights of projections that compute graph outputs called `LOGITS`, with only `_AFTER_HEAD` in between.

    ``content``: values that hold tokens (`posexport.graph.dataflow`). A sum of two of them is not followed: a sum of
    hidden states is no head's result.
    """
    by_output = {projection.output: projection.weight.value for projection in every}

    def before(value: ir.Value) -> Sequence[ir.Value]:
        node = value.producer()
        if node is None or value in by_output:
            return ()
        if node.op_type == "If":
            return [body.outputs[value.index() or 0] for body in bodies(node).values()]
        read = [operand for operand in node.inputs if operand in content] if node.op_type in _AFTER_HEAD else []
        return read if len(read) == 1 and not node.domain else ()

    logits = [value for value in outputs if (value.name or "").split("_")[-1] == LOGITS]
    return {by_output[value] for value in reachable(logits, before) if value in by_output}

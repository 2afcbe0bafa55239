"""Positions in float32 on a provider that computes the rest of a float32 graph in bfloat16."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import claim
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult

#: operators with another result if their input is rounded: bfloat16 has no odd integers above 256
_EXACT = ("Cos", "Sin", "Floor", "Ceil", "Round", "CumSum")
#: operators before which OpenVINO rounds, whatever reads their result
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN")
#: OpenVINO has no float64: it computes in float32 instead
_REAL = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
#: no value is larger
_LARGEST = float(np.finfo(np.float32).max)


class Float32Positions(GraphPass):
    """The shape of an output reads values that must not be rounded: cosines of positions and others.

    Before: ``Cos(Mul(Cast(positions), frequencies)) -> ..  -> y``
    After:  the same, and ``Reshape(y, Add(Shape(y), Cast(Greater(cosines, 3.4e38)))) -> y``: adds 0

    With ``INFERENCE_PRECISION_HINT: bf16`` OpenVINO's CPU plug-in computes every operator in bfloat16, except
    those between an output and the last matrix product before it (``Graph::EnforceInferencePrecision``). Of a position
    computed by Cast that leaves 8 bits. The Reshape copies nothing, and reads one element of every value.

    Values: results of `_EXACT` operators, and casts of real numbers to integers; everything that they depend on, back
    to a matrix product; and what depends on nothing else.
    """

    name = "float32-positions"
    description = "an output that depends on cosines of positions, which keeps them in float32 (OpenVINO)"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        provider = context.target.provider
        return provider is not None and provider.tail_in_float32

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts the values that an output reads."""
        protected = _protected(model.graph)
        producers = {value.producer() for value in protected}
        read = [value for value in protected if any(user not in producers for user, _ in value.uses())]
        if not read:
            return PassResult()
        output = next((value for value in model.graph.outputs if value.dtype in _REAL and value.producer()), None)
        if output is None:
            return PassResult(rejected=("the graph has no output of real numbers",))
        _reshape(model.graph, output, read)
        return PassResult(len(read))


def _protected(graph: ir.Graph) -> dict[ir.Value, None]:
    """The values that must not be rounded, in the order of their nodes."""
    exact: dict[ir.Value, None] = {}
    for node in graph:
        if _is_exact(node):
            exact |= dict.fromkeys((*_floats(node.inputs), *_floats(node.outputs)))
    # back to matrix products
    waiting = list(exact)
    while waiting:
        producer = waiting.pop().producer()
        if producer is None or producer.op_type in _PRODUCTS:
            continue
        new = [value for value in _floats(producer.inputs) if value not in exact and value.producer() is not None]
        exact |= dict.fromkeys(new)
        waiting += new
    # forward, while nothing else takes part
    for node in graph:
        inputs = [value for value in _floats(node.inputs) if value.producer() is not None and not _is_constant(value)]
        if inputs and node.op_type not in _PRODUCTS and all(value in exact for value in inputs):
            exact |= dict.fromkeys(_floats(node.outputs))
    return {value: None for node in graph for value in node.outputs if value in exact and not _ends_product(value)}


def _is_exact(node: ir.Node) -> bool:
    """Whether a rounded input would change the result by more than a rounding."""
    to_integer = node.op_type == "Cast" and node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32)
    return node.op_type in _EXACT or (to_integer and any(_floats(node.inputs)))


def _floats(values: Sequence[ir.Value | None]) -> Iterator[ir.Value]:
    return (value for value in values if value is not None and value.dtype in _REAL)


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "Constant"


def _ends_product(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in (*_PRODUCTS, "Constant")


def _reshape(graph: ir.Graph, output: ir.Value, read: list[ir.Value]) -> None:
    """Put a Reshape to its shape before ``output``, by a shape that depends on the values ``read``."""
    node = output.producer()
    assert node is not None
    last = graph[-1]
    g = Builder.at(last, after=True, like=(node,), name="float32_positions")
    firsts = [g.Cast(g.Slice(g.Reshape(value, [-1]), [0], [1]), to=ir.DataType.FLOAT) for value in read]
    largest = g.ReduceMax(g.Concat(*firsts, axis=0) if len(firsts) > 1 else firsts[0], keepdims=0)
    zero = g.Cast(g.Greater(largest, _LARGEST), to=ir.DataType.INT64)
    shaped = g.Reshape(output, g.Add(g.Shape(output), zero))
    # the new value is the output, under its name, type and shape
    shaped.shape, shaped.type = output.shape, output.type
    name = output.name or ""
    output.name = claim(f"{name}_before", {value.name or "" for node in graph for value in node.outputs})
    shaped.name = name
    graph.outputs[list(graph.outputs).index(output)] = shaped

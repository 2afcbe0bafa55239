"""Axes that do not vary, for runtimes that compile a graph for one size of its inputs (``--static``)."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
from onnxscript import optimizer

from posexport.base.spec import STATIC_SIZES
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult

#: elements of a constant that is computed beforehand: a bias of 32 heads for 512 tokens; ids of its buckets
_MOST = 1 << 23
#: nodes that output sizes, and nodes that a compiler for one size does not take
_OF_SIZES = frozenset({"Shape", "Size", "NonZero", "Loop", "Scan", "If", "Unique", "Compress"})


class StaticSizes(GraphPass):
    """Inputs get static sizes, and everything that follows from them is a constant.

    Before: ``x [batch_size, sequence_length]``; ``Shape(x), Gather, Range, Concat ..``
    After:  ``x [1, 128]``
    """

    name = "static-sizes"
    description = "static sizes of axes, and constants in place of what is computed from sizes (--static)"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        return bool(context.static)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts the nodes that are constants now, and names what stays of sizes."""
        before = len(model.graph)
        inputs = {value.name: value for value in model.graph.inputs}
        for spec in context.inputs:
            value = inputs[spec.name]
            value.shape = ir.Shape([context.static.get(str(axis), axis) for axis in spec.axes])
            if value.const_value is not None and value.shape.is_static():  # the default of an optional input
                default = np.broadcast_to(value.const_value.numpy(), value.shape.numpy())
                value.const_value = ir.tensor(np.ascontiguousarray(default), name=spec.name)
        ends = [(value, value.shape) for value in model.graph.outputs if value.shape is not None]
        for node in model.graph.all_nodes():
            for output in node.outputs:
                output.shape = None
        for value, shape in ends:
            value.shape = ir.Shape([context.static.get(str(size), size) for size in shape])
        with _quiet():
            optimizer.optimize_ir(
                model, onnx_shape_inference=True, input_size_limit=_MOST, output_size_limit=_MOST, inline=False
            )
        model.metadata_props[STATIC_SIZES] = json.dumps(dict(context.static))
        left = sorted({node.op_type for node in model.graph.all_nodes() if node.op_type in _OF_SIZES})
        return PassResult(
            before - len(model.graph),
            tuple(f"{name} stays: it reads an axis that varies, or depends on values" for name in left),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """onnxscript warns of every operator with several outputs that it does not fold."""
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

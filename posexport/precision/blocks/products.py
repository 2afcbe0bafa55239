"""Linear projections whose weight is in blocks: MatMulNBits, or for any runtime DequantizeLinear and MatMul."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from posexport.graph.edits import replace
from posexport.precision.blocks.packing import Scheme, for_dequantize, for_product
from posexport.precision.derived import DerivedTensors
from posexport.precision.insert import Insert
from posexport.precision.linear import Projection
from posexport.precision.worth import Replacement
from posexport.targets.target import MICROSOFT, Target

FLOAT = ir.DataType.FLOAT
OPERATOR = "MatMulNBits"


def replacement(target: Target, scheme_of: Callable[[Projection], Scheme]) -> Replacement:
    """What `Products` puts in the place of a projection."""
    if target.may_use(OPERATOR):
        return Replacement(lambda each: for_product(each.weight, scheme_of(each)), nodes=0)
    return Replacement(lambda each: for_dequantize(each.weight, scheme_of(each)), nodes=1)


class Products:
    """Of one model."""

    def __init__(self, model: ir.Model, tensors: DerivedTensors, target: Target) -> None:
        self._main = model.graph
        self._tensors = tensors
        self._fused = target.may_use(OPERATOR)
        # clients that have the operator without being a target are browsers: their kernels are of int8 too
        self._level = 4 if target.provider is None else target.provider.accuracy_level

    def replace(self, projection: Projection, scheme: Scheme) -> None:
        """Put a weight in blocks in the place of a float one; the bias is added as it was."""
        shape = projection.output.shape
        name = projection.output.name or "linear"
        add = Insert(projection.container, projection.nodes, name, before=projection.nodes[0])
        y = self._fused_product(projection, scheme, add) if self._fused else self._product(projection, scheme, add)
        if projection.bias is not None:
            y = add("Add", [y, projection.bias], "biased", FLOAT, shape=shape)
        elif not self._fused:
            self._as_maximum(projection)
        replace(projection.output, y)
        projection.container.remove(projection.nodes, safe=True)

    def _as_maximum(self, projection: Projection) -> None:
        """Write a Relu right behind a product as Max.

        ONNX Runtime 1.32 takes DequantizeLinear, MatMul and Relu for a part of a product of integers that is not there,
        and leaves the weight to be dequantized in every call.
        """
        for relu in [use.node for use in projection.output.uses() if use.node.op_type == "Relu"]:
            graph = relu.graph
            assert isinstance(graph, ir.Graph)
            value = relu.outputs[0]
            zero = self._tensors.number(graph, "zero", np.float32(0))
            add = Insert(graph, [relu], value.name or "relu", before=relu)
            replace(value, add("Max", [projection.output, zero], "positive", FLOAT, shape=value.shape))
            graph.remove(relu, safe=True)

    def _fused_product(self, projection: Projection, scheme: Scheme, add: Insert) -> ir.Value:
        k, n = projection.weight.sizes
        stored = self._tensors.put(projection.weight, projection.container, for_product(projection.weight, scheme))
        attributes = {"K": k, "N": n, "bits": scheme.bits, "block_size": scheme.size, "accuracy_level": self._level}
        inputs = [projection.product.inputs[0], *stored]
        return add(OPERATOR, inputs, "product", FLOAT, attributes, shape=projection.output.shape, domain=MICROSOFT)

    def _product(self, projection: Projection, scheme: Scheme, add: Insert) -> ir.Value:
        weight = projection.weight
        stored = self._tensors.put(weight, projection.container, for_dequantize(weight, scheme))
        calls = weight.calls
        main = projection.container is self._main or (calls and all(call.graph is self._main for call in calls))
        # ONNX Runtime makes MatMulNBits of it by axis 0, and fails to load where the weight is not of the same graph
        attributes = {"axis": 0 if main else -2, "block_size": scheme.size}
        real = add("DequantizeLinear", stored, "weight", FLOAT, attributes, shape=ir.Shape(weight.sizes))
        return add("MatMul", [projection.product.inputs[0], real], "product", FLOAT, shape=projection.output.shape)

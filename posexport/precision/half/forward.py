"""Forward: what every value is, and which activations have 16 bits."""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from posexport.graph.operators import TRUTHS
from posexport.graph.types import Types
from posexport.precision.half.flow import Flow, data_inputs
from posexport.precision.half.kinds import BOUNDS, ISLANDS, LAYERS, SMALL, STATISTICS, Info, Kind

#: outputs of ONNX Runtime's normalisations, by their place, that do not have the type of the input
_FLOAT32_OUTPUTS = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}


class Forward(Types):
    """Writes kinds, element types and the types that nodes compute in into ``flow``; the graph's inputs are known."""

    def __init__(self, flow: Flow) -> None:
        super().__init__({"": flow.kernels.opset})
        self.flow = flow

    def of(self, value: ir.Value) -> ir.DataType | None:
        return self.flow.types.get(value)

    def put(self, value: ir.Value, dtype: ir.DataType) -> None:
        self.flow.types[value] = dtype

    def called(self, node: ir.Node) -> ir.Function | None:
        return self.flow.calls.get(node)

    def constant(self, value: ir.Value) -> None:
        tensor = value.const_value
        if value in self.flow.types:  # the default of an input
            return
        super().constant(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return
        large = tensor.size == 1 and abs(float(tensor.numpy().reshape(()))) > self.flow.largest
        kind = Kind.CONSTANT if tensor.size <= 1 else Kind.WEIGHT
        self.flow.info[value] = Info(kind, size=tensor.size, large=large)

    def join(self, value: ir.Value, others: Sequence[ir.Value]) -> None:
        super().join(value, others)
        if floats := [self.flow.info[other] for other in others if other in self.flow.info]:
            self.flow.info[value] = _join(floats)

    def node(self, node: ir.Node) -> None:
        # what is cast from a comparison is float32 first: without this one cast were enough, in 16 bits at once
        if node.op_type not in TRUTHS:
            super().node(node)
        result = self._result(node)
        for index, value in enumerate(node.outputs):
            # means and deviations are float32 whatever the type of what is normalised
            measured = index in _FLOAT32_OUTPUTS.get(node.op_type, ())
            if self.flow.types.get(value) == ir.DataType.FLOAT and not measured:
                self.flow.info[value] = result

    def _result(self, node: ir.Node) -> Info:
        """What the float outputs of ``node`` are."""
        operands = [self.flow.info[value] for value in self.flow.floats(data_inputs(node))]
        self.flow.node_half[node] = False
        if node.op_type in ("Constant", "ConstantOfShape"):
            return self._of_constant(node)
        if not operands:
            return Info(Kind.POSITION)
        kind = max(operand.kind for operand in operands)
        large = any(operand.large for operand in operands) and node.op_type not in BOUNDS
        if node.op_type in LAYERS and self._is_layer(operands):
            kind = Kind.ACTIVATION
        if kind != Kind.ACTIVATION:
            size = max(operand.size for operand in operands)
            if node.op_type == "Gather" and kind == Kind.WEIGHT:
                if node.inputs[1] in self.flow.contents:
                    self.flow.node_half[node] = self.flow.kernels.has_half(node)
                    return Info(Kind.ACTIVATION, half=self.flow.node_half[node])
                kind = Kind.TABLE
            return Info(kind, size=size, large=large)
        half, statistic = self._of_activation(node, operands)
        self.flow.node_half[node] = half
        return Info(kind, half=half, statistic=statistic, large=large)

    def _of_constant(self, node: ir.Node) -> Info:
        value = node.attributes.get("value_float")
        large = value is not None and not value.is_ref() and abs(value.as_float()) > self.flow.largest
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref() and tensor.as_tensor().dtype == ir.DataType.FLOAT:
            array = tensor.as_tensor().numpy()
            large = bool(array.size) and bool((abs(array) > self.flow.largest).any())
            return Info(Kind.CONSTANT if array.size <= 1 else Kind.WEIGHT, size=array.size, large=large)
        return Info(Kind.CONSTANT, large=large)

    @staticmethod
    def _is_layer(operands: Sequence[Info]) -> bool:
        """A layer of parameters alone, or a large parameter's: a small network of positions stays one of positions."""
        if any(operand.kind == Kind.POSITION for operand in operands):
            return any(operand.kind in (Kind.WEIGHT, Kind.TABLE) and operand.size > SMALL for operand in operands)
        return max(operand.kind for operand in operands) >= Kind.WEIGHT

    def _of_activation(self, node: ir.Node, operands: Sequence[Info]) -> tuple[bool, bool]:
        """Whether ``node`` computes in 16 bits; if not, whether that is a statistic of its operand."""
        if node.op_type in ISLANDS or not self.flow.kernels.has_half(node):
            return False, node.op_type in STATISTICS
        if node.op_type in LAYERS:
            return True, False
        activations = [operand for operand in operands if operand.kind == Kind.ACTIVATION]
        statistic = any(operand.statistic for operand in activations)
        if any(operand.half for operand in activations):
            # what a norm divides by its statistic is divided in float32
            return not statistic, False
        if any(operand.kind in (Kind.WEIGHT, Kind.TABLE) for operand in operands):
            return True, False
        return False, statistic and len(activations) == 1


def _join(infos: Sequence[Info]) -> Info:
    """Of values one of which is used."""
    first = max(infos, key=lambda info: info.kind)
    return replace(
        first,
        half=any(info.half for info in infos),
        statistic=all(info.statistic for info in infos),
        size=max(info.size for info in infos),
        large=any(info.large for info in infos),
    )

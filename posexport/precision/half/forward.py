"""Forward: what every value is, and which activations have 16 bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.bodies import bodies, loop_carried, loop_inputs, loop_results
from posexport.graph.types import output_types
from posexport.precision.content import TRUTHS
from posexport.precision.half.flow import Flow, data_inputs
from posexport.precision.half.kinds import BOUNDS, ISLANDS, LAYERS, SMALL, STATISTICS, Info, Kind

#: outputs of ONNX Runtime's normalisations, by their place, that do not have the type of the input
_FLOAT32_OUTPUTS = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}
#: what these return of tokens does not depend on which ones they are
_SIZES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class Forward:
    """Writes kinds, element types and the types that nodes compute in into ``flow``."""

    flow: Flow

    def run(self, graph: ir.Graph | ir.Function) -> None:
        """Every value's kind, in the order of execution; those of the graph's inputs are known."""
        if isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                if value not in self.flow.types:
                    self._parameter(value)
        for node in graph:
            if node in self.flow.calls:
                self._enter(self.flow.calls[node].inputs, node.inputs)
                self.run(self.flow.calls[node])
                self._leave(node.outputs, [self.flow.calls[node].outputs])
            elif node.op_type == "If":
                branches = list(bodies(node).values())
                for branch in branches:
                    self.run(branch)
                self._leave(node.outputs, [branch.outputs for branch in branches])
            elif node.op_type in ("Scan", "Loop"):
                self._loop(node)
            else:
                self._compute(node)

    def _parameter(self, value: ir.Value) -> None:
        tensor = value.const_value
        dtype = value.dtype or (None if tensor is None else tensor.dtype)
        if dtype is not None:
            self.flow.types[value] = dtype
        if dtype != ir.DataType.FLOAT or tensor is None:
            return
        large = tensor.size == 1 and abs(float(tensor.numpy().reshape(()))) > self.flow.largest
        kind = Kind.CONSTANT if tensor.size <= 1 else Kind.WEIGHT
        self.flow.info[value] = Info(kind, size=tensor.size, large=large)

    def _enter(self, inner: Sequence[ir.Value], outer: Sequence[ir.Value | None]) -> None:
        """Inputs of a body are what it is called with."""
        for parameter, argument in zip(inner, outer, strict=False):
            if argument is None:
                continue
            if argument in self.flow.types:
                self.flow.types[parameter] = self.flow.types[argument]
            if argument in self.flow.info:
                self.flow.info[parameter] = self.flow.info[argument]
            if argument in self.flow.contents:
                self.flow.contents.add(parameter)

    def _leave(self, outer: Sequence[ir.Value], inner: Sequence[Sequence[ir.Value]]) -> None:
        """Outputs of a node are those of its bodies."""
        for index, value in enumerate(outer):
            results = [outputs[index] for outputs in inner if index < len(outputs)]
            known = [self.flow.types[result] for result in results if result in self.flow.types]
            if known:
                self.flow.types[value] = known[0]
            if any(result in self.flow.contents for result in results):
                self.flow.contents.add(value)
            if floats := [self.flow.info[result] for result in results if result in self.flow.info]:
                self.flow.info[value] = _join(floats)

    def _loop(self, node: ir.Node) -> None:
        body = bodies(node)["body"]
        inner, outer = loop_inputs(node, body)
        self._enter(inner, outer)
        carried = loop_carried(node, body)
        for value in body.inputs[:1] if node.op_type == "Loop" else ():
            self.flow.types[value] = ir.DataType.INT64
        for _ in range(2):  # what a state is after the body, it is before its next run
            self.run(body)
            for before, after in carried:
                if before in self.flow.info and after in self.flow.info:
                    self.flow.info[before] = _join([self.flow.info[before], self.flow.info[after]])
        self._leave(node.outputs, [loop_results(node, body)])

    def _compute(self, node: ir.Node) -> None:
        graph = node.graph
        assert graph is not None
        types = output_types(node, self.flow.types.get, {"": self.flow.kernels.opset})
        for value, dtype in zip(node.outputs, types, strict=True):
            # what is cast from a comparison is float32 first: without this one cast were enough, in 16 bits at once
            if dtype is not None and node.op_type not in TRUTHS:
                self.flow.types[value] = dtype
        if node.op_type not in _SIZES and any(
            value in self.flow.contents for value in node.inputs if value is not None
        ):
            self.flow.contents.update(node.outputs)
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

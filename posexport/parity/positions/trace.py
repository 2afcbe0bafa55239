"""Every place of a graph in which a number that positions alone lead to is rounded to 16 bits.

Allowed is one rounding, the last: what is cast to 16 bits may be moved and then meets an activation. A wrong graph of
a small random model can pass every numeric check, because its attention hardly looks at positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from posexport.graph.bodies import bodies
from posexport.graph.types import settle
from posexport.parity.positions.origins import HALVES, MOVES, SMALL, Origin, Traced, numbers, result
from posexport.spec import InputSpec

#: what an input is by its role
_ROLES = {"positions": Origin.POSITION, "grids": Origin.POSITION, "mask": Origin.FLAG, "lengths": Origin.POSITION}


def roundings(model: Path | bytes, inputs: Sequence[InputSpec]) -> list[str]:
    """A sentence for every such place in the graph ``model``, whose inputs have the roles of ``inputs``."""
    graph = ir.from_proto(onnx.ModelProto.FromString(model)) if isinstance(model, bytes) else ir.load(model)
    InlinePass()(graph)
    settle(graph.graph, graph.opset_imports)
    roles: Mapping[str, str] = {spec.name: spec.role for spec in inputs}
    trace = _Trace()
    for value in graph.graph.inputs:
        trace.values[value] = Traced(_ROLES.get(roles.get(value.name or "", ""), Origin.ACTIVATION))
    trace.follow(graph.graph)
    return list(trace.places.values())


@dataclass
class _Trace:
    """What is known of the values so far, and the sentences by the node that they are about."""

    values: dict[ir.Value, Traced] = field(default_factory=dict)
    places: dict[ir.Node, str] = field(default_factory=dict)

    def follow(self, graph: ir.Graph) -> None:
        """In the order of execution."""
        for value in graph.initializers.values():
            self.values[value] = _parameter(value.const_value)
        for node in graph:
            if node.op_type == "If":
                branches = list(bodies(node).values())
                for branch in branches:
                    self.follow(branch)
                for index, value in enumerate(node.outputs):
                    self._join(value, [branch.outputs[index] for branch in branches])
            elif node.op_type in ("Loop", "Scan"):
                self._loop(node)
            else:
                self._node(node)

    def _loop(self, node: ir.Node) -> None:
        body = bodies(node)["body"]
        loop = node.op_type == "Loop"
        # a Loop's body gets the number of its turn and a condition first, and gives a condition first
        inner, outer = (body.inputs[2:], node.inputs[2:]) if loop else (body.inputs, node.inputs)
        for value in body.inputs[:2] if loop else ():
            self.values[value] = Traced(Origin.POSITION)
        states = len(inner) - (0 if loop else node.attributes["num_scan_inputs"].as_int())
        results = body.outputs[1:] if loop else body.outputs
        for value, fed in zip(inner, outer, strict=True):
            self.values[value] = self._of(fed)
        for _ in range(2):  # a state after a turn is one before the next
            self.follow(body)
            for before, after in zip(inner[:states], results[:states], strict=True):
                self._join(before, [before, after])
        for value, after in zip(node.outputs, results, strict=True):
            self.values[value] = self._of(after)

    def _join(self, value: ir.Value, others: Sequence[ir.Value]) -> None:
        self.values[value] = max((self._of(other) for other in others), key=lambda each: (each.origin, each.narrow))

    def _of(self, value: ir.Value | None) -> Traced:
        return self.values.get(value, Traced(Origin.CONSTANT)) if value is not None else Traced(Origin.CONSTANT)

    def _node(self, node: ir.Node) -> None:
        if node.op_type == "Constant":
            attribute = node.attributes.get("value")
            for value in node.outputs:
                self.values[value] = _parameter(None if attribute is None else attribute.as_tensor())
            return
        data = [value for value in numbers(node) if value is not None]
        operands = [self._of(value) for value in data]
        places = [self._of(value) for value in node.inputs if value is not None and value not in data]
        for value in node.outputs:
            self.values[value] = result(node, operands, places, value.dtype)
        if node.op_type not in MOVES and node.outputs and (reason := self._rounds(node, data)):
            self.places.setdefault(node, f"{node.op_type} {node.name!r} {reason}")

    def _rounds(self, node: ir.Node, data: Sequence[ir.Value]) -> str:
        """Why ``node`` must not compute what it does; empty where it may."""
        value = node.outputs[0]
        if self._of(value).origin == Origin.ACTIVATION:
            return ""
        for each in data:
            if self._of(each).origin == Origin.POSITION and each.dtype in HALVES:
                return f"reads {each.name!r}, which is computed from positions and was rounded to {_type(each)}"
        if self._of(value).origin != Origin.POSITION:
            return ""
        integer = any(each.dtype is not None and not each.dtype.is_floating_point() for each in data)
        if value.dtype in HALVES and (node.op_type != "Cast" or integer):
            return f"computes {value.name!r} from positions in {_type(value)}"
        for each in data:
            traced = self._of(each)
            if traced.narrow and traced.origin <= Origin.ROWS and traced.size <= SMALL:
                return f"computes {value.name!r} from positions and {each.name!r}, which was rounded to 16 bits"
        return ""


def _parameter(tensor: "ir.TensorProtocol | None") -> Traced:
    if tensor is None:
        return Traced(Origin.CONSTANT, 1)
    origin = Origin.CONSTANT if tensor.size <= 1 else Origin.PARAMETER
    return Traced(origin, tensor.size, tensor.dtype in HALVES)


def _type(value: ir.Value) -> str:
    return "" if value.dtype is None else value.dtype.name.lower()

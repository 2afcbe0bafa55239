"""Writes the types that were decided: constants, parameters, and a Cast where a value is read in another type.

One Cast for a value in a scope, where the value is computed or at the start of a branch that alone needs it. Parameters
are brought to 16 bits when they are written, one at a time.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.graph.edits import claim
from posexport.graph.precision.half.flow import INDIFFERENT, Flow, Kind, is_float_cast
from posexport.graph.queries import bodies, loop_inputs, loop_results, with_bodies

Array = NDArray[np.float32]
WIDE = ir.DataType.FLOAT
_FLOAT32_MAX = float(np.finfo(np.float32).max)
#: magnitudes from here on mean "drop this score" and are no quantity
_SENTINEL = 1e30


@dataclass
class Casts:
    """``dtype``: the type of 16 bits; the casts that are written, by value, type and scope."""

    flow: Flow
    dtype: ir.DataType
    _casts: dict[tuple[ir.Value, bool, ir.Graph], ir.Value] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def write(self, root: ir.Graph | ir.Function) -> None:
        """The main graph, or a function's body; a call's function first."""
        outer = self._names
        self._names = _names(root)
        self._scope(root.graph if isinstance(root, ir.Function) else root, [])
        self._names = outer

    def _scope(self, graph: ir.Graph, around: list[ir.Graph], user: ir.Node | None = None) -> None:
        scopes = [*around, graph]
        for node in list(graph):
            if node in self.flow.calls:
                function = self.flow.calls[node]
                self._unread(function, node)
                self.write(function)
                self._sentinels(node)
                self._read(
                    node, {index: value in self.flow.half for index, value in enumerate(function.inputs)}, scopes
                )
            elif node.op_type == "If":
                for branch in bodies(node).values():
                    self._scope(branch, scopes, node)
            elif node.op_type in ("Scan", "Loop"):
                self._loop(node, scopes)
            else:
                self._node(node, scopes)
            self._type(node.outputs)
        self._type(graph.inputs)
        if user is not None:
            self._branch_outputs(graph, user, scopes)

    def _unread(self, function: ir.Function, node: ir.Node) -> None:
        """A function's input that nothing reads gets the type of its argument."""
        for parameter, argument in zip(function.inputs, node.inputs, strict=False):
            if argument in self.flow.info and not self.flow.needs[parameter]:
                (self.flow.half.add if argument in self.flow.half else self.flow.half.discard)(parameter)

    def _loop(self, node: ir.Node, scopes: list[ir.Graph]) -> None:
        body = bodies(node)["body"]
        inner, outer = loop_inputs(node, body)
        skipped = len(node.inputs) - len(outer)
        # before the loop, not in every turn of it
        for value in _captured(body):
            for half in (True, False):
                if value in self.flow.info and (value in self.flow.half) != half and self._is_read(body, value, half):
                    self._cast(value, half, scopes, node)
        self._scope(body, scopes, node)
        self._read(node, {index + skipped: value in self.flow.half for index, value in enumerate(inner)}, scopes)

    def _is_read(self, body: ir.Graph, value: ir.Value, half: bool) -> bool:
        inside = set(ir.traversal.RecursiveGraphIterator(body))
        for node, index in value.uses():
            if node not in inside or node.op_type in INDIFFERENT:
                continue
            if node in self.flow.calls:
                needs_half = self.flow.calls[node].inputs[index] in self.flow.half
            else:
                needs_half = self.flow.node_half.get(node, False)
            if needs_half == half:
                return True
        return False

    def _branch_outputs(self, graph: ir.Graph, user: ir.Node, scopes: list[ir.Graph]) -> None:
        if user.op_type == "If":
            targets: list[ir.Value] = list(user.outputs)
        else:
            body_outputs = loop_results(user, graph)
            skipped = len(graph.outputs) - len(body_outputs)
            targets = [*graph.outputs[:skipped], *user.outputs]
        for index, target in enumerate(targets):
            value = graph.outputs[index]
            if value in self.flow.info and (value in self.flow.half) != (target in self.flow.half):
                graph.outputs[index] = self._cast(value, target in self.flow.half, scopes, None)

    def _node(self, node: ir.Node, scopes: list[ir.Graph]) -> None:
        half = self.flow.node_half.get(node, False)
        if node.op_type in ("Constant", "ConstantOfShape") and node.outputs[0] in self.flow.info:
            self._constant(node, half)
        elif is_float_cast(node) and node.outputs[0] in self.flow.info:
            self._float_cast(node, half)
        elif node.op_type not in INDIFFERENT:
            self._read(node, dict.fromkeys(range(len(node.inputs)), half), scopes)

    def _float_cast(self, node: ir.Node, half: bool) -> None:
        """A cast to float becomes a cast to the decided type, or disappears."""
        value, result = node.inputs[0], node.outputs[0]
        if value is not None and value in self.flow.info and (value in self.flow.half) == half:
            node.op_type = "Identity"
            node.attributes.clear()
            if not result.is_graph_output():
                ir.convenience.replace_all_uses_with(result, value)
        else:
            node.op_type = "Cast"
            node.attributes["to"] = ir.AttrInt64("to", int(self.dtype if half else WIDE))
        node.resize_inputs(1)
        assert result in self.flow.info

    def _read(self, node: ir.Node, half_of: dict[int, bool], scopes: list[ir.Graph]) -> None:
        for index, half in half_of.items():
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None and value in self.flow.info and (value in self.flow.half) != half:
                node.replace_input_with(index, self._cast(value, half, scopes, node))

    def _cast(self, value: ir.Value, half: bool, scopes: list[ir.Graph], before: ir.Node | None) -> ir.Value:
        """``value`` in the other type; ``before``: the reader, None for an output of the innermost scope."""
        for scope in scopes:
            if (value, half, scope) in self._casts:
                return self._casts[value, half, scope]
        dtype = self.dtype if half else WIDE
        graph = scopes[-1]
        nodes: list[ir.Node] = []
        if half and self.flow.info[value].large and self.flow.info[value].kind == Kind.POSITION:
            nodes += self._bounded(value)
        source = nodes[-1].outputs[0] if nodes else value
        name = claim(f"{value.name}_{'half' if half else 'float32'}", self._names)
        cast = ir.node("Cast", [source], {"to": int(dtype)}, name=f"{name}_cast")
        cast.outputs[0].name = name
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(dtype), value.shape
        nodes.append(cast)
        producer = value.producer()
        if before is not None and before.graph is graph:
            graph.insert_before(before, nodes)
        elif producer is not None and producer.graph is graph:
            graph.insert_after(producer, nodes)
        else:
            graph.extend(nodes)
        self._casts[value, half, graph] = cast.outputs[0]
        return cast.outputs[0]

    def output(self, value: ir.Value, half: bool, graph: ir.Graph) -> ir.Value:
        """``value`` in the other type, for an output of the main graph."""
        return self._cast(value, half, [graph], None)

    def _bounded(self, value: ir.Value) -> list[ir.Node]:
        """A mask that was computed in float32 becomes the least score that 16 bits hold, not minus infinity."""
        least = ir.node("Constant", [], {"value_float": -self.flow.largest / 2})
        least.outputs[0].name = claim(f"{value.name}_least", self._names)
        bounded = ir.node("Max", [value, least.outputs[0]])
        bounded.outputs[0].name = claim(f"{value.name}_bounded", self._names)
        for node in (least, bounded):
            node.name = node.outputs[0].name
            node.outputs[0].type = ir.TensorType(WIDE)
        bounded.outputs[0].shape = value.shape
        return [least, bounded]

    def _constant(self, node: ir.Node, half: bool) -> None:
        attribute = next((a for name, a in node.attributes.items() if name.startswith("value")), None)
        if attribute is None:  # ConstantOfShape of zeros
            if half:
                node.attributes["value"] = ir.AttrTensor("value", self._tensor(np.zeros(1, np.float32), half))
            return
        if attribute.is_ref():
            return
        array = np.asarray(
            attribute.as_tensor().numpy() if attribute.type == ir.AttributeType.TENSOR else attribute.value, np.float32
        )
        bounded = self.sentinels(array)
        if half or not np.array_equal(bounded, array, equal_nan=True):
            del node.attributes[attribute.name]
            node.attributes["value"] = ir.AttrTensor("value", self._tensor(bounded, half))

    def _sentinels(self, call: ir.Node) -> None:
        """Bounds the float attributes of a call, for example the score of a dropped key."""
        for name, attribute in list(call.attributes.items()):
            if attribute.type == ir.AttributeType.FLOAT and not attribute.is_ref():
                number = float(self.sentinels(np.asarray(attribute.as_float(), np.float32)))
                if abs(attribute.as_float()) >= _SENTINEL:
                    call.attributes[name] = ir.AttrFloat32(name, number)

    def sentinels(self, array: Array) -> Array:
        """Scales sentinels, float32's least number or half of it, to the 16-bit type."""
        huge = np.isfinite(array) & (np.abs(array) >= _SENTINEL)
        return np.where(huge, array * np.float32(self.flow.largest / _FLOAT32_MAX), array).astype(np.float32)

    def _tensor(self, array: Array, half: bool) -> "ir.TensorProtocol":
        return ir.Tensor(array.astype(numpy_type(self.dtype)) if half else array)

    def _type(self, values: Sequence[ir.Value]) -> None:
        for value in values:
            if value in self.flow.info:
                value.type = ir.TensorType(self.dtype if value in self.flow.half else WIDE)


def numpy_type(dtype: ir.DataType) -> "np.dtype[np.generic]":
    return np.dtype(ml_dtypes.bfloat16 if dtype == ir.DataType.BFLOAT16 else np.float16)


def _names(root: ir.Graph | ir.Function) -> set[str]:
    nodes = list(ir.traversal.RecursiveGraphIterator(root))
    values = {
        value.name for node in nodes for value in (*node.outputs, *node.inputs) if value is not None and value.name
    }
    return values | {node.name for node in nodes if node.name} | {value.name for value in root.inputs if value.name}


def _captured(body: ir.Graph) -> Iterator[ir.Value]:
    """Values from around that ``body`` reads, in order and once."""
    nodes = list(ir.traversal.RecursiveGraphIterator(body))
    inside = {value for graph in with_bodies(body) for value in graph.inputs}
    inside |= {value for node in nodes for value in node.outputs}
    yield from dict.fromkeys(
        value for node in nodes for value in node.inputs if value is not None and value not in inside
    )


#: larger parameters are brought to 16 bits only when the file is written
_LAZY = 1 << 20


def convert(graph: ir.Graph, casts: Casts) -> None:
    """Every initialiser to the type that was decided for it.

    Raises:
        PosexportError: a parameter is beyond what float16 holds.
    """
    for value in graph.initializers.values():
        tensor = value.const_value
        if value not in casts.flow.info or tensor is None:
            continue
        if value not in casts.flow.half:
            if tensor.size <= 1:
                bounded = casts.sentinels(np.asarray(tensor.numpy(), np.float32))
                value.const_value = ir.Tensor(bounded.reshape(tensor.shape.numpy()), name=value.name)
            continue
        narrow = functools.partial(_narrow, value.name or "", tensor, casts)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = (
            ir.LazyTensor(narrow, casts.dtype, shape, name=value.name) if tensor.nbytes > _LAZY else narrow()
        )
        value.type = ir.TensorType(casts.dtype)


def _narrow(name: str, tensor: "ir.TensorProtocol", casts: Casts) -> "ir.TensorProtocol":
    array = casts.sentinels(np.asarray(tensor.numpy(), np.float32))
    with np.errstate(over="ignore"):
        narrow = array.astype(numpy_type(casts.dtype))
    if not np.array_equal(np.isfinite(array), np.isfinite(narrow.astype(np.float32))):
        most = np.abs(array[np.isfinite(array)]).max()
        raise PosexportError(
            f"{name} holds {most:.6g}, and {casts.dtype.name.lower()} ends at {casts.flow.largest:.6g}; "
            "use --precision bf16"
        )
    return ir.Tensor(narrow, name=name)

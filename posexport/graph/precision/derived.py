"""Tensors that replace a weight and are computed from it, for example int8 values and scales.

They are computed when the file is written, one at a time, and kept nowhere: a large model's quantised weights need not
fit into memory together with the float ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.targets.target import MICROSOFT, MICROSOFT_OPSET
from posexport.graph.edits import initializer
from posexport.graph.precision.projections import Weight, containers
from posexport.graph.queries import with_bodies

Array = NDArray[Any]
#: returns a matrix, which a large model's checkpoint makes anew each time
Read = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True)
class Derived:
    """A tensor to make of a weight: ``make`` takes what reads the matrix [K, N] in float32, and may know without it."""

    dtype: ir.DataType
    shape: Sequence[int]
    make: Callable[[Read], Array]

    @property
    def nbytes(self) -> int:
        return math.ceil(math.prod(self.shape) * self.dtype.itemsize)


class DerivedTensors:
    """The derived tensors of one model; several nodes that read a weight share its tensors."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._known: dict[tuple[ir.Value, str], ir.Value] = {}
        self._moved: dict[ir.Value, tuple[ir.Node, ...]] = {}
        self._numbers: dict[tuple[int, str], ir.Value] = {}
        inside = {id(graph) for graph in with_bodies(model.graph)}
        self._in_functions = {id(graph) for graph in containers(model)} - inside

    @property
    def opset(self) -> int:
        """Of the model: bodies of branches do not say theirs."""
        return self._model.opset_imports[""]

    def put(self, weight: Weight, container: ir.Graph, tensors: Mapping[str, Derived]) -> list[ir.Value]:
        """The values that nodes of ``container`` read for ``tensors``; the same key of a weight is the same tensor."""
        return [self._value(weight, container, key, derived) for key, derived in tensors.items()]

    def number(self, container: ir.Graph, name: str, value: Array | np.generic) -> ir.Value:
        """A constant, one for each name; it is in the main graph where bodies can read that."""
        owner = container if id(container) in self._in_functions else self._model.graph
        key = (id(owner), name)
        if key not in self._numbers:
            stored = constant_node if owner is container and owner is not self._model.graph else initializer
            self._numbers[key] = stored(owner, name, ir.tensor(np.asarray(value)))
        return self._numbers[key]

    def finish(self) -> None:
        """Removes float weights that nothing reads any more, also from functions' inputs and their calls."""
        for value, calls in self._moved.items():
            function = next(f for f in self._model.functions.values() if value in f.inputs)
            if not value.uses():
                place = list(function.inputs).index(value)
                function.inputs.pop(place)
                for call in calls:
                    _set_inputs(call, [operand for at, operand in enumerate(call.inputs) if at != place])
        RemoveUnusedNodesPass()(self._model)

    def _value(self, weight: Weight, container: ir.Graph, key: str, derived: Derived) -> ir.Value:
        known = self._known.get((weight.value, key))
        if known is None:
            known = self._create(weight, container, key, derived)
            self._known[weight.value, key] = known
        return known

    def _create(self, weight: Weight, container: ir.Graph, key: str, derived: Derived) -> ir.Value:
        name = f"{weight.name}_{key}"
        if weight.calls:
            return self._argument(weight, name, derived)
        owner = weight.value.graph
        if weight.value.is_initializer() and isinstance(owner, ir.Graph):
            return initializer(owner, name, _lazy(weight, derived))
        producer = weight.value.producer()
        top = container if producer is None or producer.graph is None else producer.graph
        return constant_node(top, name, _lazy(weight, derived))

    def _argument(self, weight: Weight, name: str, derived: Derived) -> ir.Value:
        """An input of the function, which every call passes an initialiser of the main graph."""
        function = next(f for f in self._model.functions.values() if weight.value in f.inputs)
        inner = ir.Value(name=name, type=ir.TensorType(derived.dtype), shape=ir.Shape(derived.shape))
        function.inputs.append(inner)
        for place, call in enumerate(weight.calls):
            stored = initializer(self._model.graph, name, _lazy(weight, derived, place))
            missing: list[ir.Value | None] = [None] * (len(function.inputs) - 1 - len(call.inputs))
            _set_inputs(call, [*call.inputs, *missing, stored])
        self._moved[weight.value] = weight.calls
        return inner


def constant_node(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A Constant at the start of a function or a body in one."""
    tensor.name = name
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)  # type: ignore[arg-type]
    node = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)}, outputs=[value], name=f"node_{name}")
    graph.insert_before(graph[0], node)
    return value


def _lazy(weight: Weight, derived: Derived, call: int = 0) -> ir.LazyTensor:
    return ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(derived.make(partial(weight.array, call))), dtype=derived.dtype),
        derived.dtype,
        ir.Shape(derived.shape),
    )


def _set_inputs(node: ir.Node, values: Sequence[ir.Value | None]) -> None:
    node.resize_inputs(len(values))
    for place, value in enumerate(values):
        node.replace_input_with(place, value)


def import_microsoft(model: ir.Model) -> None:
    """Adds the opset import of com.microsoft to the model and to functions that use its operators."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if any(node.domain == MICROSOFT for body in with_bodies(graph) for node in body):
            graph.opset_imports.setdefault(MICROSOFT, MICROSOFT_OPSET)
            model.opset_imports.setdefault(MICROSOFT, MICROSOFT_OPSET)

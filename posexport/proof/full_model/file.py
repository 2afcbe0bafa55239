"""A graph's file, read without its weights: these are read one at a time."""

import copy
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from posexport.graph.protos import bodies
from posexport.proof.full_model.plain_rows import with_plain_rows

#: types of which several numbers are in one byte
_PACKED = {TensorProto.INT4, TensorProto.UINT4}


class File:
    """A model's graph; ``model`` is a path, or a model with all its weights inside."""

    def __init__(self, model: Path | onnx.ModelProto) -> None:
        self._axes_of: dict[str, list[int] | None] = {}
        #: the initializer that a transposed one is
        self.stored_as: dict[str, str] = {}
        self._folder = model.parent if isinstance(model, Path) else Path()
        self.model = onnx.load(model, load_external_data=False) if isinstance(model, Path) else copy.deepcopy(model)
        with_plain_rows(self.model)

    @cached_property
    def tensors(self) -> dict[str, TensorProto]:
        """Constants: initializers, what Constant nodes hold, and transposed ones (large weights are not folded)."""
        constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        for node in self.model.graph.node:
            if node.op_type == "Constant" and not node.domain and node.attribute[0].name == "value":
                constants[node.output[0]] = node.attribute[0].t
            elif node.op_type == "Transpose" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]
                self._axes_of[node.output[0]] = list(node.attribute[0].ints) if node.attribute else None
                self.stored_as[node.output[0]] = self.stored_as.get(node.input[0], node.input[0])
        return constants

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """The nodes that compute no constant."""
        return [node for node in self.model.graph.node if node.output[0] not in self.tensors]

    @cached_property
    def _axes(self) -> dict[str, list[str]]:
        """Names of the axes of inputs, also of those that a guard passed on."""
        axes = {
            value.name: [axis.dim_param for axis in value.type.tensor_type.shape.dim]
            for value in self.model.graph.input
        }
        producers = {node.output[0]: node for node in self.nodes}
        for node in self.nodes:
            target = producers.get(node.input[1]) if node.op_type == "Reshape" else None
            shape = producers.get(target.input[0]) if target is not None and target.op_type == "Add" else None
            if shape is not None and shape.op_type == "Shape" and shape.input[0] == node.input[0] in axes:
                axes[node.output[0]] = axes[node.input[0]]
        return axes

    def size_of_axis(self, node: NodeProto) -> str:
        """The axis that a Shape reads the size of: axes of one name are equal, and any of them may be read."""
        attributes = {attribute.name: attribute.i for attribute in node.attribute} if node.op_type == "Shape" else {}
        start = attributes.get("start", 0)
        axes = self._axes.get(node.input[0], ()) if attributes.get("end") == start + 1 else ()
        return axes[start] if start < len(axes) else ""

    def constant(self, name: str) -> NDArray[Any]:
        array = self.array(self.tensors[name])
        return array.transpose(self._axes_of[name]) if name in self._axes_of else array

    def reads(self, node: NodeProto) -> list[str]:
        """What ``node`` and its bodies read, but for inputs of the graph whose sizes alone they read."""
        sizes = self.sizes_read(node)
        return [name for name in self._elements(node, set()) if name not in sizes]

    def sizes_read(self, node: NodeProto) -> dict[str, str]:
        """Inputs of the graph whose sizes alone ``node`` reads, with their axes: any input of these axes will do."""
        elements = set(self._elements(node, self._sizes_only(node)))
        return {name: f"sizes {self._axes[name]}" for name in node.input if name in self._axes and name not in elements}

    def _elements(self, node: NodeProto, sizes: set[int]) -> list[str]:
        return [*(name for at, name in enumerate(node.input) if name and at not in sizes), *outer_names(node)]

    def _sizes_only(self, node: NodeProto) -> set[int]:
        """Which of a node's inputs it reads the sizes of, in a function too."""
        if node.op_type == "Shape" and not node.domain:
            return {0}
        function = self._functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            return set()
        read = {name for inner in function.node for name in self._elements(inner, self._sizes_only(inner))}
        read |= set(function.output)
        return {at for at, name in enumerate(function.input[: len(node.input)]) if name not in read}

    @cached_property
    def _functions(self) -> dict[tuple[str, str, str], FunctionProto]:
        return {(function.domain, function.name, function.overload): function for function in self.model.functions}

    def array(self, tensor: TensorProto) -> NDArray[Any]:
        """The numbers of ``tensor``; of a large file's, pages of it. Of 4 bits: their bytes."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return np.asarray(numpy_helper.to_array(tensor))
        entry = {item.key: item.value for item in tensor.external_data}
        dtype = np.dtype(np.uint8) if tensor.data_type in _PACKED else helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = int(entry["length"]) // dtype.itemsize
        mapped = np.memmap(
            self._folder / entry["location"], np.uint8, "r", int(entry.get("offset", 0)), int(entry["length"])
        )
        array = mapped.view(dtype)[:count]
        return array if tensor.data_type in _PACKED else array.reshape(tuple(tensor.dims))


def outer_names(node: NodeProto) -> Iterator[str]:
    """Values of the graph around ``node`` that its bodies read."""
    for body in bodies(node):
        inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in (*inner.input, *outer_names(inner)) if name and name not in inside)
            inside.update(inner.output)
        yield from (value.name for value in body.output if value.name not in inside)

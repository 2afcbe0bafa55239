"""Type adapters between a drop-in file's inputs and outputs and a bundle's.

A bundle takes float32 and int64 and returns float32; a drop-in file has the types of the user's module. So the module
is wrapped to take a bundle's inputs, and Cast, Sub and Squeeze nodes at the ends of the finished graph restore them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from posexport.base.targets.dtypes import BY_NAME
from posexport.graph.edits import initializer

#: from the file's integers x to the bundle's: x; 1 - x, for masks in which 1 is padding; x - 1, for counts from 1 on
Shift = Literal["", "inverted", "counted"]


@dataclass(frozen=True)
class InputAdapter:
    """An input: its name and type in the file, its name in the bundle, and how their integers differ."""

    name: str
    dtype: torch.dtype
    bundle_name: str
    shift: Shift = ""

    def to_bundle(self, tensor: Tensor) -> Tensor:
        """The value of the bundle's input."""
        if not self.dtype.is_floating_point:
            tensor = tensor.to(torch.int64)
        return 1 - tensor if self.shift == "inverted" else tensor - 1 if self.shift == "counted" else tensor

    def from_bundle(self, tensor: Tensor) -> Tensor:
        """The value of the file's input, which the user's module takes."""
        if self.dtype.is_floating_point:
            return tensor  # in float64 for the reference
        tensor = 1 - tensor if self.shift == "inverted" else tensor + 1 if self.shift == "counted" else tensor
        return tensor.to(self.dtype)


def input_adapter(name: str, tensor: Tensor, bundle_name: str) -> InputAdapter:
    """The adapter of an input with this name and example."""
    return InputAdapter(name, tensor.dtype, bundle_name, _shift(name.lower(), tensor))


def _shift(name: str, tensor: Tensor) -> Shift:
    if tensor.is_floating_point():
        return ""
    if "mask" in name:
        return "inverted" if _one_is_masked(name, tensor) else ""
    counts = "length" in name or name.endswith(("len", "lens"))
    return "counted" if counts and tensor.dtype != torch.bool and int(tensor.min()) >= 1 else ""


def _one_is_masked(name: str, tensor: Tensor) -> bool:
    """Whether 1 in a mask means "do not attend", as in ``nn.MultiheadAttention``: a token always attends to itself."""
    ones = int((tensor != 0).sum())
    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and 0 < ones < tensor.numel():
        return not bool(tensor.diagonal(dim1=-2, dim2=-1).any())
    return ones == 0 or ("pad" in name and 2 * ones < tensor.numel())


def add_to_input(graph: ir.Graph, index: int, adapter: InputAdapter) -> None:
    """Give input ``index`` of ``graph`` the file's name and type, and insert the nodes that convert it."""
    value = graph.inputs[index]
    if adapter.dtype in (torch.int64, torch.float32) and not adapter.shift:
        value.name = adapter.name
        return
    outer = ir.Value(name=adapter.name, type=ir.TensorType(_onnx(adapter.dtype)), shape=value.shape)
    nodes = []
    inner = outer
    if adapter.dtype != torch.int64:
        nodes.append(ir.node("Cast", [inner], {"to": ir.DataType.INT64}))
        inner = nodes[-1].outputs[0]
    if adapter.shift:
        one = initializer(graph, f"{adapter.name}_one", ir.tensor(np.array(1, np.int64)))
        nodes.append(ir.node("Sub", [one, inner] if adapter.shift == "inverted" else [inner, one]))
        inner = nodes[-1].outputs[0]
    inner.shape, inner.type = value.shape, value.type
    inner.name = value.name if value.name != adapter.name else f"{adapter.name}_int64"
    for user, place in list(value.uses()):
        user.replace_input_with(place, inner)
    graph.inputs[index] = outer
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


@dataclass(frozen=True)
class OutputAdapter:
    """An output: its name and type in the file; ``scalar``: rank 0, while the bundle's has one axis of size 1."""

    name: str
    dtype: torch.dtype
    scalar: bool = False


def add_to_output(graph: ir.Graph, index: int, adapter: OutputAdapter) -> None:
    """Give output ``index`` of ``graph`` the file's name, type and rank, and append the nodes that convert it."""
    value = graph.outputs[index]
    nodes = []
    if adapter.scalar:
        nodes.append(ir.node("Squeeze", [value]))
    if adapter.dtype != torch.float32:
        nodes.append(ir.node("Cast", [nodes[-1].outputs[0] if nodes else value], {"to": _onnx(adapter.dtype)}))
    if not nodes:
        value.name = adapter.name
        return
    if value.name == adapter.name:
        value.name = f"{adapter.name}_in_bundle"
    outer = nodes[-1].outputs[0]
    outer.name, outer.type = adapter.name, ir.TensorType(_onnx(adapter.dtype))
    outer.shape = ir.Shape([]) if adapter.scalar else value.shape
    graph.extend(nodes)
    graph.outputs[index] = outer


def _onnx(dtype: torch.dtype) -> ir.DataType:
    name = str(dtype).removeprefix("torch.")
    return ir.DataType[BY_NAME[name].onnx if name in BY_NAME else name.upper()]


def bundle_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Names in the bundle: Python identifiers, and none that means a KV cache; ``taken`` are not used again."""
    result: list[str] = []
    for name in names:
        valid = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        if not valid.isidentifier() or valid.startswith(("past_key_values", "present")) or valid == "self":
            valid = f"own_{valid}"
        while valid in result or valid in taken:
            valid += "_"
        result.append(valid)
    return result

"""The types of the file's inputs and outputs, where those of a bundle are others, and the nodes between the two.

A bundle takes float32 and int64 and gives float32. A drop-in file has the types of the user's module, so a module
around it takes a bundle's inputs, and nodes at the ends of the finished graph make these of the file's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from posexport.graph.edits import initializer
from posexport.targets.dtypes import BY_NAME

#: how the bundle's integers are made of the file's: as they are; 1 - x, of masks in which 1 is padding; x - 1, of
#: counts, which begin at 1 where ids begin at 0
Shift = Literal["", "inverted", "counted"]


@dataclass(frozen=True)
class InputPort:
    """An input: the file's name and type, the bundle's name, and how the values of one are made of the other's."""

    name: str
    dtype: torch.dtype
    internal: str
    shift: Shift = ""

    def inward(self, tensor: Tensor) -> Tensor:
        """The bundle's input of the file's."""
        if not self.dtype.is_floating_point:
            tensor = tensor.to(torch.int64)
        return 1 - tensor if self.shift == "inverted" else tensor - 1 if self.shift == "counted" else tensor

    def outward(self, tensor: Tensor) -> Tensor:
        """The file's input, which the user's module takes, of the bundle's."""
        if self.dtype.is_floating_point:
            return tensor  # in float64 for the reference
        tensor = 1 - tensor if self.shift == "inverted" else tensor + 1 if self.shift == "counted" else tensor
        return tensor.to(self.dtype)


def input_port(name: str, tensor: Tensor, internal: str) -> InputPort:
    """What is known of an input by its name and example."""
    return InputPort(name, tensor.dtype, internal, _shift(name.lower(), tensor))


def _shift(name: str, tensor: Tensor) -> Shift:
    if tensor.is_floating_point():
        return ""
    if "mask" in name:
        return "inverted" if _one_is_masked(name, tensor) else ""
    counts = "length" in name or name.endswith(("len", "lens"))
    return "counted" if counts and tensor.dtype != torch.bool and int(tensor.min()) >= 1 else ""


def _one_is_masked(name: str, tensor: Tensor) -> bool:
    """Whether 1 in a mask is what is not attended to, as in ``nn.MultiheadAttention``: tokens attend to themselves."""
    ones = int((tensor != 0).sum())
    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and 0 < ones < tensor.numel():
        return not bool(tensor.diagonal(dim1=-2, dim2=-1).any())
    return ones == 0 or ("pad" in name and 2 * ones < tensor.numel())


def add_to_input(graph: ir.Graph, index: int, port: InputPort) -> None:
    """Give input ``index`` of ``graph`` the file's name and type, with the nodes that make the bundle's of it."""
    value = graph.inputs[index]
    if port.dtype in (torch.int64, torch.float32) and not port.shift:
        value.name = port.name
        return
    outer = ir.Value(name=port.name, type=ir.TensorType(_onnx(port.dtype)), shape=value.shape)
    nodes = []
    inner = outer
    if port.dtype != torch.int64:
        nodes.append(ir.node("Cast", [inner], {"to": ir.DataType.INT64}))
        inner = nodes[-1].outputs[0]
    if port.shift:
        one = initializer(graph, f"{port.name}_one", ir.tensor(np.array(1, np.int64)))
        nodes.append(ir.node("Sub", [one, inner] if port.shift == "inverted" else [inner, one]))
        inner = nodes[-1].outputs[0]
    inner.shape, inner.type = value.shape, value.type
    inner.name = value.name if value.name != port.name else f"{port.name}_int64"
    for user, place in list(value.uses()):
        user.replace_input_with(place, inner)
    graph.inputs[index] = outer
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


@dataclass(frozen=True)
class OutputPort:
    """An output: the file's name and type; ``scalar``: without an axis, where the bundle's has one of size 1."""

    name: str
    dtype: torch.dtype
    scalar: bool = False


def add_to_output(graph: ir.Graph, index: int, port: OutputPort) -> None:
    """Give output ``index`` of ``graph`` the file's name, type and axes."""
    value = graph.outputs[index]
    nodes = []
    if port.scalar:
        nodes.append(ir.node("Squeeze", [value]))
    if port.dtype != torch.float32:
        nodes.append(ir.node("Cast", [nodes[-1].outputs[0] if nodes else value], {"to": _onnx(port.dtype)}))
    if not nodes:
        value.name = port.name
        return
    if value.name == port.name:
        value.name = f"{port.name}_in_bundle"
    outer = nodes[-1].outputs[0]
    outer.name, outer.type = port.name, ir.TensorType(_onnx(port.dtype))
    outer.shape = ir.Shape([]) if port.scalar else value.shape
    graph.extend(nodes)
    graph.outputs[index] = outer


def _onnx(dtype: torch.dtype) -> ir.DataType:
    name = str(dtype).removeprefix("torch.")
    return ir.DataType[BY_NAME[name].onnx if name in BY_NAME else name.upper()]


def internal_names(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """The bundle's names of inputs or outputs: arguments that Python allows, and none that means a KV cache."""
    found: list[str] = []
    for name in names:
        own = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        if not own.isidentifier() or own.startswith(("past_key_values", "present")) or own == "self":
            own = f"own_{own}"
        while own in found or own in taken:
            own += "_"
        found.append(own)
    return found

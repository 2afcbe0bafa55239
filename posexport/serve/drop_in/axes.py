"""Dynamic axes and their names: ``dynamic_axes`` and ``dynamic_shapes`` of ``torch.onnx.export``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from posexport.errors import PosexportError
from posexport.serve.drop_in.example import ExampleCall, Leaf

#: an axis: the tensor's name and the axis' index
TensorAxis = tuple[str, int]


@dataclass(frozen=True)
class DynamicAxis:
    """A dynamic axis.

    Attributes:
        name: its name in the file.
        named: the user chose the name; axes of the same name have the same size.
        optional: it becomes static if it cannot vary (``Dim.AUTO``).
        most: its largest size; None: any.
    """

    name: str
    named: bool = True
    optional: bool = False
    most: int | None = None


def from_dynamic_axes(
    call: ExampleCall, dynamic_axes: Mapping[str, Any], outputs: Mapping[str, Tensor]
) -> tuple[dict[TensorAxis, DynamicAxis], dict[TensorAxis, str]]:
    """Dynamic axes of inputs, and names of axes of outputs, in ``dynamic_axes``; ``outputs``: outputs of the example.

    Raises:
        PosexportError: a name is neither an input nor an output, or an axis is not there.
    """
    leaves = {leaf.name: leaf for leaf in call.leaves}
    input_axes: dict[TensorAxis, DynamicAxis] = {}
    output_axes: dict[TensorAxis, str] = {}
    for name, axes in dynamic_axes.items():
        if name not in leaves and name not in outputs:
            known = ", ".join([*leaves, *outputs])
            raise PosexportError(f"dynamic_axes has {name!r}, which is no name of an input or output: {known}")
        for axis, axis_name, named in _entries(name, axes):
            if name in leaves:
                tensor_axis = (name, _axis(f"input {name!r}", leaves[name].tensor, axis))
                input_axes[tensor_axis] = DynamicAxis(axis_name, named=named)
            else:
                output_axes[name, _axis(f"output {name!r}", outputs[name], axis)] = axis_name
    return input_axes, output_axes


def _entries(name: str, axes: Any) -> Iterator[tuple[int, str, bool]]:
    """Index, name and whether the user named it, for ``{0: "batch"}`` or ``[0, 1]`` (which torch numbers)."""
    if axes is None:
        return
    if not isinstance(axes, Mapping | Sequence) or isinstance(axes, str):
        raise PosexportError(f"dynamic_axes of {name!r} must be a dict or a list of axes, got {type(axes).__name__}")
    named = isinstance(axes, Mapping)
    pairs = (
        axes.items()
        if isinstance(axes, Mapping)
        else ((axis, f"{name}_dynamic_axes_{i + 1}") for i, axis in enumerate(axes))
    )
    for axis, axis_name in pairs:
        if type(axis) is not int or not isinstance(axis_name, str):
            raise PosexportError(
                f"dynamic_axes of {name!r} must map whole numbers to names, got {axis!r}: {axis_name!r}"
            )
        yield axis, axis_name, named


def _axis(what: str, tensor: Tensor, axis: int) -> int:
    """An axis counted from the front."""
    if not -tensor.dim() <= axis < tensor.dim():
        raise PosexportError(f"{what} has {tensor.dim()} axes in the example, and no axis {axis}")
    return axis % tensor.dim()


def from_dynamic_shapes(call: ExampleCall, dynamic_shapes: Any) -> dict[TensorAxis, DynamicAxis]:
    """The axes of inputs in ``dynamic_shapes``: nested like the arguments, or by names of parameters or inputs.

    Raises:
        PosexportError: it does not fit the example.
    """
    dynamic_axes: dict[TensorAxis, DynamicAxis] = {}
    for leaf, axes in _leaf_axes(call, dynamic_shapes):
        if axes is None:
            continue
        if isinstance(axes, Mapping):
            pairs = list(axes.items())
        elif isinstance(axes, Sequence) and len(axes) == leaf.tensor.dim():
            pairs = list(enumerate(axes))
        else:
            raise PosexportError(
                f"dynamic_shapes of input {leaf.name!r} must be a dict from axes to Dim or a list of its "
                f"{leaf.tensor.dim()} axes, got {axes!r}"
            )
        for axis, dim in pairs:
            tensor_axis = (leaf.name, _axis(f"input {leaf.name!r}", leaf.tensor, axis))
            if (dynamic := _dynamic(tensor_axis, dim)) is not None:
                dynamic_axes[tensor_axis] = dynamic
    return dynamic_axes


def _leaf_axes(call: ExampleCall, shapes: Any) -> Iterator[tuple[Leaf, Any]]:
    """Every tensor with its entry of ``shapes``."""
    if shapes is None:
        return
    if not isinstance(shapes, Mapping | tuple | list):
        raise PosexportError(
            f"dynamic_shapes must be a dict, tuple or list, got {type(shapes).__name__}; name the axes of every input"
        )
    parameters = [name for name, _ in call.arguments]
    if not isinstance(shapes, Mapping):
        if len(shapes) != len(parameters):
            raise PosexportError(
                f"dynamic_shapes has {len(shapes)} entries for the {len(parameters)} arguments {', '.join(parameters)}"
            )
        shapes = dict(zip(parameters, shapes, strict=True))
    names = [leaf.name for leaf in call.leaves]
    # forward may have parameters that the example leaves out
    if unknown := [name for name, axes in shapes.items() if axes is not None and name not in {*parameters, *names}]:
        raise PosexportError(
            f"dynamic_shapes has {unknown[0]!r}, which is no argument or input: {', '.join([*parameters, *names])}"
        )
    for leaf in call.leaves:
        if leaf.parameter in shapes:
            yield leaf, _inside(leaf, shapes[leaf.parameter])
        elif leaf.name in shapes:
            yield leaf, shapes[leaf.name]


def _inside(leaf: Leaf, shapes: Any) -> Any:
    """The entry of an argument's nested shapes for one tensor in it."""
    for key in leaf.path:
        if shapes is None:
            return None
        index = key.idx if isinstance(key, pytree.SequenceKey) else getattr(key, "key", getattr(key, "name", None))
        try:
            shapes = shapes[index]
        except (KeyError, IndexError, TypeError) as err:
            raise PosexportError(
                f"dynamic_shapes of argument {leaf.parameter!r} is not nested like the example: nothing at {index!r}"
            ) from err
    return shapes


def _dynamic(tensor_axis: TensorAxis, dim: Any) -> DynamicAxis | None:
    """One axis of ``dynamic_shapes``: a Dim, its name, AUTO or DYNAMIC; None where it is fixed."""
    name, axis = tensor_axis
    if dim is None or type(dim) is int:
        return None
    if isinstance(dim, str):
        return DynamicAxis(dim)
    kind = getattr(getattr(dim, "type", None), "name", "")
    if kind == "STATIC":
        return None
    if kind in ("AUTO", "DYNAMIC"):
        return DynamicAxis(f"{name}_dim_{axis}", named=False, optional=kind == "AUTO", most=_most(dim))
    if isinstance(dim, torch.export.Dim) and not hasattr(dim, "root"):
        return DynamicAxis(dim.__name__, most=_most(dim))
    raise PosexportError(
        f"dynamic_shapes gives axis {axis} of input {name!r} {dim!r}; give it a torch.export.Dim of its own, a name, "
        "Dim.AUTO, Dim.DYNAMIC, Dim.STATIC or None"
    )


def _most(dim: Any) -> int | None:
    """The largest size that a Dim allows."""
    most = getattr(dim, "max", None)
    # without a limit of the user's, torch has an object for infinity, or the largest index
    return most if type(most) is int and most < 1 << 31 else None

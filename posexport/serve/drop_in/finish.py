"""A bundle's graph as the file that was asked for: its names, types and axes, and what ``posexport.*`` says of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.export.save import KEEP_INSIDE, weight_bytes
from posexport.graph.edits import free_names
from posexport.modules.axes.example_calls import TensorAxis
from posexport.serve.drop_in import ports
from posexport.serve.drop_in.ports import InputPort, OutputPort

#: above this, protobuf takes no file; some is left for the graph
LARGEST = (1 << 31) - (1 << 24)


@dataclass(frozen=True, kw_only=True)
class FileNames:
    """What the file calls things.

    Attributes:
        inputs: the bundle's inputs in their order.
        outputs: the bundle's outputs in their order.
        axes: names of axes of inputs and outputs, by tensor and number.
        symbols: the file's names of the bundle's axes, for axes of outputs that have none of their own.
    """

    inputs: list[InputPort]
    outputs: list[OutputPort]
    axes: Mapping[TensorAxis, str]
    symbols: Mapping[str, str] = field(default_factory=dict)


def finished(bundle: Path, names: FileNames, entries: Mapping[str, str]) -> tuple[ir.Model, list[str]]:
    """The model in ``bundle`` with ``names``, and remarks; ``entries`` are added to its metadata."""
    model = ir.load(bundle)
    graph = model.graph
    free_names(graph, {port.name for port in names.inputs} | {port.name for port in names.outputs})
    by_name = {port.internal: port for port in names.inputs}
    for index, value in enumerate(list(graph.inputs)):
        ports.add_to_input(graph, index, by_name[value.name or ""])
    for index, output in enumerate(names.outputs):
        ports.add_to_output(graph, index, output)
    remarks = _name_axes(graph, names)
    _metadata(model, names, entries)
    return model, remarks


def save(model: ir.Model, path: Path, *, external: bool | None) -> list[Path]:
    """Write ``model``; weights beside it where ``external``, by default where one file cannot hold them."""
    size = weight_bytes(model)
    if external is False and size > LARGEST:
        raise PosexportError(
            f"{size} bytes of weights are more than one .onnx holds; leave external_data=False out, and they stand in "
            "a file beside it"
        )
    if external or size > LARGEST:
        data = path.with_name(f"{path.name}.data")
        ir.save(model, path, external_data=data.name, size_threshold_bytes=KEEP_INSIDE)
        written = [data, path] if data.exists() else [path]
    else:
        into_memory(model)
        ir.save(model, path)
        written = [path]
    onnx.checker.check_model(str(path), full_check=True)
    return written


def into_memory(model: ir.Model) -> None:
    """Read the weights that stand in another file."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)


def _name_axes(graph: ir.Graph, names: FileNames) -> list[str]:
    """Write names over the axes that vary; a remark for one that should have a name and does not vary."""
    remarks = []
    for value in [*graph.inputs, *graph.outputs]:
        dims: list[int | str | None] = []
        for axis, dim in enumerate(value.shape or ()):
            own = names.axes.get((value.name or "", axis))
            if isinstance(dim, int):
                if own is not None:
                    remarks.append(
                        f"axis {axis} of output {value.name} is declared as {own!r} and has the size {dim} always"
                    )
                dims.append(dim)
            else:
                dims.append(own or names.symbols.get(dim.value or "", dim.value))
        value.shape = ir.Shape(dims)
    return remarks


def _metadata(model: ir.Model, names: FileNames, entries: Mapping[str, str]) -> None:
    """``posexport.inputs``, ``outputs`` and ``limits`` with the file's names."""
    properties = model.metadata_props
    specs: dict[str, list[dict[str, Any]]] = {key: json.loads(properties[f"posexport.{key}"]) for key in _ENDS}
    for key, values in (("inputs", model.graph.inputs), ("outputs", model.graph.outputs)):
        for spec, value in zip(specs[key], values, strict=True):
            spec["name"] = value.name
            spec["axes"] = [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
    for spec, port in zip(specs["inputs"], names.inputs, strict=True):
        spec["dtype"] = str(port.dtype).removeprefix("torch.")
        spec["role"] = {"inverted": "padding", "counted": "lengths"}.get(port.shift, spec["role"])
        if port.shift == "counted":
            spec["size"] += 1
    for key in _ENDS:
        properties[f"posexport.{key}"] = json.dumps(specs[key])
    properties["posexport.limits"] = json.dumps(_renamed(json.loads(properties["posexport.limits"]), names.symbols))
    properties.update(entries)


_ENDS = ("inputs", "outputs")


def _renamed(record: Any, symbols: Mapping[str, str]) -> Any:
    """A JSON value with the file's names of axes, where they stand as keys or as elements of lists."""
    if isinstance(record, Mapping):
        return {symbols.get(key, key): _renamed(value, symbols) for key, value in record.items()}
    if isinstance(record, Sequence) and not isinstance(record, str):
        return [symbols.get(value, value) if isinstance(value, str) else _renamed(value, symbols) for value in record]
    return record

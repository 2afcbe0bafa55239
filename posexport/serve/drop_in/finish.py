"""From a bundle's graph to a drop-in file: names, types, axes, the metadata ``posexport.*``, and the call's result."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from posexport.conversion.export.save import KEEP_INSIDE
from posexport.errors import PosexportError
from posexport.graph.edits import free_names
from posexport.graph.queries import weight_bytes
from posexport.serve.drop_in import type_adapters
from posexport.serve.drop_in.axes import TensorAxis
from posexport.serve.drop_in.type_adapters import InputAdapter, OutputAdapter

if TYPE_CHECKING:
    from posexport.proof.report.report import Report

#: the most bytes of weights within a protobuf file, which leaves some for the graph
LARGEST = (1 << 31) - (1 << 24)


@dataclass(frozen=True, kw_only=True)
class FileNames:
    """Names in the file.

    Attributes:
        inputs: the inputs in the bundle's order.
        outputs: the outputs in the bundle's order.
        axes: names of axes of inputs and outputs, by tensor and index.
        symbols: from the bundle's names of axes to the file's, for axes of outputs that are not in ``axes``.
    """

    inputs: list[InputAdapter]
    outputs: list[OutputAdapter]
    axes: Mapping[TensorAxis, str]
    symbols: Mapping[str, str] = field(default_factory=dict)


def finished(bundle: Path, names: FileNames, entries: Mapping[str, str]) -> tuple[ir.Model, list[str]]:
    """The model in ``bundle`` with ``names``, and remarks; ``entries`` are added to its metadata."""
    model = ir.load(bundle)
    graph = model.graph
    free_names(graph, {adapter.name for adapter in names.inputs} | {adapter.name for adapter in names.outputs})
    by_name = {adapter.bundle_name: adapter for adapter in names.inputs}
    for index, value in enumerate(list(graph.inputs)):
        type_adapters.add_to_input(graph, index, by_name[value.name or ""])
    for index, output in enumerate(names.outputs):
        type_adapters.add_to_output(graph, index, output)
    remarks = _name_axes(graph, names)
    _metadata(model, names, entries)
    return model, remarks


def save(model: ir.Model, path: Path, *, external: bool | None) -> list[Path]:
    """Write ``model``; ``external``: weights in a second file, by default if one file cannot hold them."""
    size = weight_bytes(model)
    if external is False and size > LARGEST:
        raise PosexportError(
            f"{size} bytes of weights are more than one .onnx holds; leave external_data=False out, and they stand in "
            "a file beside it"
        )
    if external or size > LARGEST:
        data = path.with_name(f"{path.name}.data")
        ir.save(model, path, external_data=data.name, size_threshold_bytes=KEEP_INSIDE)
        files = [data, path] if data.exists() else [path]
    else:
        into_memory(model)
        ir.save(model, path)
        files = [path]
    onnx.checker.check_model(str(path), full_check=True)
    return files


def into_memory(model: ir.Model) -> None:
    """Load external weights, so that the model does not depend on the file that it came from."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)


def _name_axes(graph: ir.Graph, names: FileNames) -> list[str]:
    """Name the dynamic axes; returns a remark for each named axis of an output that is static."""
    remarks = []
    for value in [*graph.inputs, *graph.outputs]:
        dims: list[int | str | None] = []
        for axis, dim in enumerate(value.shape or ()):
            axis_name = names.axes.get((value.name or "", axis))
            if isinstance(dim, int):
                if axis_name is not None:
                    remarks.append(
                        f"axis {axis} of output {value.name} is declared as {axis_name!r} and has the size {dim} always"
                    )
                dims.append(dim)
            else:
                dims.append(axis_name or names.symbols.get(dim.value or "", dim.value))
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
    for spec, adapter in zip(specs["inputs"], names.inputs, strict=True):
        spec["dtype"] = str(adapter.dtype).removeprefix("torch.")
        spec["role"] = {"inverted": "padding", "counted": "lengths"}.get(adapter.shift, spec["role"])
        if adapter.shift == "counted":
            spec["size"] += 1
    for key in _ENDS:
        properties[f"posexport.{key}"] = json.dumps(specs[key])
    properties["posexport.limits"] = json.dumps(_renamed(json.loads(properties["posexport.limits"]), names.symbols))
    properties.update(entries)


_ENDS = ("inputs", "outputs")


def _renamed(record: Any, symbols: Mapping[str, str]) -> Any:
    """A JSON value with names of axes, as keys or elements of lists, replaced by the file's."""
    if isinstance(record, Mapping):
        return {symbols.get(key, key): _renamed(value, symbols) for key, value in record.items()}
    if isinstance(record, Sequence) and not isinstance(record, str):
        return [symbols.get(value, value) if isinstance(value, str) else _renamed(value, symbols) for value in record]
    return record


@dataclass(frozen=True)
class ExportedModel:
    """An exported model.

    Attributes:
        model: the onnx_ir model, like ``.model`` of torch's ``ONNXProgram``.
        report: the report of the proof; None if ``parity=False``.
        remarks: sentences about the module and the file that a user should know.
    """

    model: ir.Model
    report: "Report | None"
    remarks: tuple[str, ...]

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as ``onnx.ModelProto``; external weights stay external."""
        return ir.to_proto(self.model)

    @property
    def verdict(self) -> str:
        """The verdict of the proof: ``proven``, or a weaker one with the reason."""
        from posexport.proof.report.record import verdict

        return verdict(self.report).words

    def save(self, destination: "str | os.PathLike[str]", *, external_data: bool | None = None) -> None:
        """Write the ``.onnx``; ``external_data``: weights in a second file, by default if one cannot hold them."""
        path = Path(destination)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            into_place(save(self.model, Path(folder) / path.name, external=external_data), path)


def into_place(files: list[Path], path: Path) -> None:
    """Move finished files into the folder of ``path``, weights first; existing files are replaced."""
    for file in files:
        os.replace(file, path.parent / file.name)

"""The steps of `posexport.torch_onnx_export`, from its call to the proven file."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from torch import Tensor

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, HEIGHT, MODEL, SEQUENCE, WIDTH
from posexport.base.system.threads import session_threads
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.conversion.result import Conversion
from posexport.errors import PosexportError
from posexport.modules.call import CallError, calling
from posexport.modules.copied import copied
from posexport.serve.drop_in import finish
from posexport.serve.drop_in.axes import TensorAxis, from_dynamic_axes, from_dynamic_shapes
from posexport.serve.drop_in.equal_axes import Symbol, equal_axes
from posexport.serve.drop_in.example import ExampleCall, example_call
from posexport.serve.drop_in.finish import ExportedModel, into_place
from posexport.serve.drop_in.request import Request
from posexport.serve.drop_in.type_adapters import InputAdapter, OutputAdapter, bundle_names, input_adapter
from posexport.serve.drop_in.wrapped import Wrapped, wrapped


@dataclass(frozen=True)
class _Interface:
    """Inputs and outputs of the file; ``symbols``: its symbolic sizes by the bundle's names."""

    call: ExampleCall
    adapters: list[InputAdapter]
    outputs: dict[str, Tensor]
    symbols: dict[str, Symbol]
    output_axes: dict[TensorAxis, str]

    @property
    def axes(self) -> dict[str, list[str | int]]:
        """The axes of the bundle's inputs: names or sizes."""
        shapes: dict[str, list[str | int]] = {leaf.name: list(leaf.tensor.shape) for leaf in self.call.leaves}
        for label, symbol in self.symbols.items():
            for name, axis in symbol.members:
                shapes[name][axis] = label
        return {adapter.bundle_name: shapes[adapter.name] for adapter in self.adapters}

    def names(self, order: Sequence[InputAdapter]) -> finish.FileNames:
        """The file's names of its inputs in ``order``, its outputs and axes."""
        return finish.FileNames(
            inputs=list(order),
            outputs=[OutputAdapter(name, tensor.dtype, not tensor.dim()) for name, tensor in self.outputs.items()],
            axes={
                **{
                    tensor_axis: axis.name
                    for symbol in self.symbols.values()
                    for tensor_axis, axis in zip(symbol.members, symbol.axes, strict=True)
                },
                **self.output_axes,
            },
            symbols={label: symbol.axes[0].name for label, symbol in self.symbols.items()},
        )


def export(request: Request) -> ExportedModel:
    """Export and prove the module of ``request``, and write the file.

    Raises:
        PosexportError: what cannot be exported and why; then nothing is written.
    """
    module = request.module
    call = example_call(module, request.args, request.kwargs, request.input_names)
    names = [leaf.name for leaf in call.leaves]
    adapters = [
        input_adapter(leaf.name, leaf.tensor, bundle_name)
        for leaf, bundle_name in zip(call.leaves, bundle_names(names), strict=True)
    ]
    interface = _interface(request, call, adapters)
    beside = None if request.path is None else request.path.parent
    with tempfile.TemporaryDirectory(prefix=".posexport.", dir=beside) as folder:
        wrapper = wrapped(
            module, call, adapters, bundle_names(list(interface.outputs), [input_.bundle_name for input_ in adapters])
        )
        conversion = _converted(request, wrapper, interface, Path(folder) / "bundle")
        return _placed(request, interface, conversion, Path(folder))


def _interface(request: Request, call: ExampleCall, adapters: list[InputAdapter]) -> _Interface:
    """Inputs, outputs and axes of the file, by running a copy of the module on the example."""
    label = type(request.module).__name__
    copy = copied(label, wrapped(request.module, call, adapters), "the export must not change yours").cpu().eval()
    tensors = {leaf.name: leaf.tensor for leaf in call.leaves}
    results = _run_example(label, copy, tensors)
    outputs = dict(zip(_output_names(label, list(results), request.output_names), results.values(), strict=True))
    if clash := [name for name in outputs if name in tensors]:
        raise PosexportError(f"{label}: {clash[0]!r} is the name of an input and of an output; give them two names")
    output_axes: dict[TensorAxis, str] = {}
    if request.dynamic_shapes is not None:
        axes = from_dynamic_shapes(call, request.dynamic_shapes)
    else:
        axes, output_axes = from_dynamic_axes(call, request.dynamic_axes or {}, outputs)
    return _Interface(
        call, adapters, outputs, _labelled(equal_axes(label, copy.outputs, tensors, axes), tensors), output_axes
    )


def _run_example(label: str, module: Wrapped, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Call the module with the example's inputs; PosexportError if it fails."""
    try:
        with calling():  # a module may write to its inputs
            return module.outputs({name: tensor.clone() for name, tensor in tensors.items()})
    except CallError as failed:
        raise PosexportError(f"{label}: {failed.sentence('on the example itself')}") from failed.error


def _output_names(label: str, keys: list[str], output_names: Sequence[str] | None) -> list[str]:
    """``output_names`` for the first outputs, the module's ``keys`` for the others."""
    chosen = [str(name) for name in output_names or ()]
    if len(chosen) > len(keys):
        raise PosexportError(f"{label}: {len(chosen)} output_names for {len(keys)} outputs: {', '.join(keys)}")
    names = [*chosen, *keys[len(chosen) :]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PosexportError(f"{label}: two outputs are called {twice!r}; give every tensor a name in output_names")
    return names


def _labelled(symbols: Sequence[Symbol], tensors: Mapping[str, Tensor]) -> dict[str, Symbol]:
    """The symbols by a bundle's names of axes: batch, sequence, height, width."""
    labels: dict[str, Symbol] = {}
    meanings = _meanings(symbols, tensors)
    # the sequences of the first inputs have the plain names
    for meaning, symbol in sorted(zip(meanings, symbols, strict=True), key=lambda pair: pair[0] != BATCH):
        label = ENCODER_SEQUENCE if meaning == SEQUENCE and SEQUENCE in labels else meaning
        if label in labels:
            name, axis = symbol.members[0]
            label = f"{bundle_names([name])[0]}_{axis}_{meaning}"
        labels[label] = symbol
    return labels


def _meanings(symbols: Sequence[Symbol], tensors: Mapping[str, Tensor]) -> list[str]:
    """The meaning of each symbol: batch, height, width or sequence."""
    varying = {tensor_axis for symbol in symbols for tensor_axis in symbol.members}
    images = {
        name
        for name, tensor in tensors.items()
        if tensor.dim() == 4 and tensor.is_floating_point() and {(name, 2), (name, 3)} <= varying
    }
    meanings = [_meaning(symbol, images) for symbol in symbols]
    if BATCH not in meanings:
        for index, symbol in enumerate(symbols):
            first = all(axis == 0 for _, axis in symbol.members)
            if first and any(name == symbol.members[0][0] and axis for name, axis in varying):
                meanings[index] = BATCH
                break
    return meanings


def _meaning(symbol: Symbol, images: set[str]) -> str:
    """The meaning of a symbol by the names of its axes, else by the index of the first one."""
    names = [axis.name.lower() for axis in symbol.axes if axis.named]
    if any("batch" in name or name in ("b", "n", "bs", "bsz") for name in names):
        return BATCH
    name, axis = symbol.members[0]
    if not names and axis == 0:
        return BATCH
    return {2: HEIGHT, 3: WIDTH}.get(axis, SEQUENCE) if name in images else SEQUENCE


def _converted(request: Request, wrapper: Wrapped, interface: _Interface, bundle: Path) -> Conversion:
    """Write the bundle, proven unless ``parity=False``."""
    sequence = interface.symbols.get(SEQUENCE)
    limit = None if sequence is None else sequence.most
    example = {
        adapter.bundle_name: adapter.to_bundle(leaf.tensor)
        for adapter, leaf in zip(interface.adapters, interface.call.leaves, strict=True)
    }
    options = ConvertOptions(
        example_inputs=example,
        axes=interface.axes,
        task="features",
        verify=request.parity,
        max_length=limit,
        **request.options,
    )
    conversion = convert(wrapper, bundle, options, progress=options.progress, remark=options.remark or (lambda _: None))
    if conversion.manifest is None:
        first = "" if conversion.report is None else f": {conversion.report.describe()}"
        raise PosexportError(f"{type(wrapper).__name__}: parity was missed, nothing was written{first}")
    return conversion


def _placed(request: Request, interface: _Interface, conversion: Conversion, folder: Path) -> ExportedModel:
    """Write the bundle's graph with the file's names to the request's path or buffer."""
    by_bundle_name = {adapter.bundle_name: adapter for adapter in interface.adapters}
    assert conversion.manifest is not None  # `_converted` raises
    order = [by_bundle_name[spec.name] for spec in conversion.manifest.inputs]
    entries = {"posexport.parity": conversion.verdict, "posexport.exported_by": "torch_onnx_export"}
    model, remarks = finish.finished(folder / "bundle" / MODEL, interface.names(order), entries)
    name = "model.onnx" if request.path is None else request.path.name
    out = folder / "out"
    out.mkdir()
    files = finish.save(model, out / name, external=False if request.buffer is not None else request.external_data)
    _check_same(folder / "bundle" / MODEL, out / name, interface)
    if request.buffer is not None:
        request.buffer.write((out / name).read_bytes())
    file = out / name
    if request.path is not None:
        into_place(files, request.path)
        file = request.path
    loaded = ir.load(file)
    if request.path is None:
        finish.into_memory(loaded)
    return ExportedModel(loaded, conversion.report, (*_with_file_names(conversion.remarks, order), *remarks))


def _with_file_names(remarks: Sequence[str], adapters: Sequence[InputAdapter]) -> list[str]:
    """The conversion's remarks; a count, which the bundle has as ids from 0 on, is described as in the file."""
    counted = {f"input {adapter.bundle_name}": adapter for adapter in adapters if adapter.shift == "counted"}
    sentences = []
    for remark in remarks:
        subject, _, said = remark.partition(": ")
        adapter = counted.get(subject)
        if adapter is not None and said.startswith("ids from 0"):
            most = int(said.partition(" to ")[2].split()[0]) + 1
            remark = (
                f"input {adapter.name}: counts from 1 to {most} are proven, as the example has; give the largest there"
            )
        elif adapter is not None and said.startswith("all integers from 0 on"):
            remark = f"input {adapter.name}: all counts from 1 on are taken, as the module refuses no larger ones"
        sentences.append(remark)
    return sentences


def _check_same(bundle: Path, file: Path, interface: _Interface) -> None:
    """Assert that the file's outputs on the example are the proven graph's, as names and types were changed."""
    leaves = interface.call.leaves
    feeds = {leaf.name: leaf.tensor.numpy() for leaf in leaves}
    bundle_feeds = {
        adapter.bundle_name: adapter.to_bundle(leaf.tensor).numpy()
        for adapter, leaf in zip(interface.adapters, leaves, strict=True)
    }
    proven, renamed = _run(bundle, bundle_feeds), _run(file, feeds)
    for (name, tensor), before, after in zip(interface.outputs.items(), proven.values(), renamed.values(), strict=True):
        if name not in renamed or not np.array_equal(_shaped(before, tensor), after, equal_nan=True):
            raise AssertionError(f"output {name} of the file is not the proven graph's, shape {list(tensor.shape)}")


def _shaped(output: Any, like: Tensor) -> Any:
    """A bundle's output with the type and rank of the module's."""
    array = output.astype(like.numpy().dtype)
    return array if like.dim() else array.reshape(())


def _run(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """ONNX Runtime's outputs by name; ``feeds`` may hold more than the graph's inputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, session_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {value.name: feeds[value.name] for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))

"""Runs a bundle's graphs on the stand-in device: ``worker.py JOB ANSWER``, both JSON, in a process of its own.

LD_LIBRARY_PATH has the stand-ins and DRYRUN_COMPUTE the card; `ci.lab.cuda_dry.run` starts it. The process ends without
destructors, which would need CUDA. Imports no torch.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from copied_sizes import copied_to_host
from onnxruntime import OrtValue
from record import Call, call, matched
from stand_in import StandIn

from posexport.base.spec import CAPACITY, PRESENT, PartSpec
from posexport.base.targets.providers import CUDA
from posexport.inspect.explain import feeds
from posexport.run.bundle.manifest import MODEL, Manifest
from posexport.run.bundle.read import read
from posexport.run.chain import graph_feeds
from posexport.run.placement import kernels, read_profile

#: elements of NumPy's types that ONNX Runtime's OrtValue does not know, as ONNX numbers them
_BFLOAT16 = 16


class Size(msgspec.Struct, frozen=True):
    """A call: new tokens, tokens in the cache, rows, slots of a static cache (0: as many as are used)."""

    length: int | None = None
    past: int | None = None
    batch: int = 1
    capacity: int = 0


class Job(msgspec.Struct, frozen=True):
    """``calls``: by their names. ``captured``: those that are also tried as a CUDA graph.

    ``values``: what fills integers of an ONNX file of fixed shapes that stands in the place of a bundle.
    """

    bundle: str
    libraries: str
    calls: dict[str, Size]
    captured: list[str] = []
    values: dict[str, int] | None = None


class Graph:
    """One graph of a bundle, open on the stand-in device."""

    def __init__(self, path: Path, graph: Manifest | PartSpec | None, stand_in: StandIn, folder: Path) -> None:
        self.path, self.stand_in, self.folder = path, stand_in, folder
        self.optimized = folder / "optimized.onnx"
        settings = onnxruntime.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = str(folder / "profile")
        settings.enable_mem_pattern = False  # one block for many tensors
        settings.log_severity_level = 3
        settings.optimized_model_filepath = str(self.optimized)
        provider = (CUDA.ort_name, {**CUDA.options, **stand_in.allocator()})
        self.session = onnxruntime.InferenceSession(str(path), settings, providers=[provider])
        inputs, outputs = ([], []) if graph is None else (graph.inputs, graph.outputs)
        past = [spec.name for spec in inputs if CAPACITY in spec.axes]
        present = [spec.name for spec in outputs if CAPACITY in spec.axes and set(PRESENT) & set(spec.axes)]
        #: outputs that are written into the buffer of an input
        self.shared = dict(zip(present, past, strict=True)) if len(past) == len(present) else {}
        self.windows: list[tuple[str, int, list[Any], int]] = []

    def values(self, arrays: dict[str, Any]) -> dict[str, OrtValue]:
        """Inputs on the device, but those that the graph reads on the host."""
        memory = [info.name for info in self.session.get_input_memory_infos()]
        values = {}
        for port, where in zip(self.session.get_inputs(), memory, strict=True):
            if port.name not in arrays:
                continue
            device, array = "cpu" if where == "Cpu" else "cuda", arrays[port.name]
            if port.type == "tensor(bfloat16)":
                values[port.name] = OrtValue.ortvalue_from_shape_and_type(array.shape, _BFLOAT16, device, 0)
            else:
                values[port.name] = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)
        return values

    def run(self, name: str, values: dict[str, OrtValue]) -> dict[str, OrtValue]:
        """Call it twice, for the first call also prepares, and keep the second one's events."""
        self.stand_in.expect(copied_to_host(self.optimized, values))
        for _ in range(2):
            binding = self.session.io_binding()
            for each, value in values.items():
                binding.bind_ortvalue_input(each, value)
            for output in self.session.get_outputs():
                if output.name in self.shared:
                    binding.bind_ortvalue_output(output.name, values[self.shared[output.name]])
                else:
                    binding.bind_output(output.name, "cuda")
            before, begin = self.stand_in.memory, time.time_ns()
            self.stand_in.reset()
            self.session.run_with_iobinding(binding)
            events, peak = self.stand_in.events(self.folder / "events"), self.stand_in.peak - before
            outputs = dict(zip((o.name for o in self.session.get_outputs()), binding.get_outputs(), strict=True))
            del binding
        self.windows.append((name, begin, events, peak))
        return outputs

    def records(self) -> dict[str, Call]:
        """What every call did; the session is over then."""
        start = self.session.get_profiling_start_time_ns()
        profile = sorted(kernels(read_profile(Path(self.session.end_profiling()))), key=lambda each: each.ts)
        found = {}
        for name, begin, events, peak in self.windows:
            end = events[-1].ns if events else begin
            window = [each for each in profile if begin <= start + each.ts * 1000 <= end]
            found[name] = call(matched(window, start, events), events, peak)
        return found

    def capture(self, values: dict[str, OrtValue], outputs: dict[str, OrtValue]) -> str:
        """``captured`` if the call can be captured and replayed as a CUDA graph, else ONNX Runtime's reason."""
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        try:
            provider = (CUDA.ort_name, {**CUDA.options, "enable_cuda_graph": "1"})
            session = onnxruntime.InferenceSession(str(self.path), settings, providers=[provider])
            binding = session.io_binding()
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                shared = name in self.shared
                binding.bind_ortvalue_output(name, values[self.shared[name]] if shared else value)
            for _ in range(3):
                session.run_with_iobinding(binding)
        except Exception as error:  # noqa: BLE001  # what ONNX Runtime raises is the finding
            return short(error)
        return "captured"


def short(error: Exception) -> str:
    """ONNX Runtime's message without where in its sources it was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[-300:]


def graphs(directory: Path) -> list[tuple[str, Manifest | PartSpec]]:
    manifest = read(directory)
    parts: list[tuple[str, Manifest | PartSpec]] = [(part.file, part) for part in manifest.parts]
    return parts or [(MODEL, manifest)]


def sized(manifest: Manifest, size: Size) -> dict[str, Any]:
    """The inputs of a call."""
    named = feeds.sizes(manifest.inputs, manifest.limits, batch=size.batch, length=size.length, past=size.past)
    if size.capacity:
        named[CAPACITY] = size.capacity
    return dict(feeds.draw(manifest.inputs, manifest.limits, named))


def answer(job: Job) -> dict[str, dict[str, Call]]:
    """By graph and call."""
    directory, stand_in = Path(job.bundle), StandIn(Path(job.libraries))
    if job.values is not None:
        return {directory.name: {"call": of_file(directory, job.values, stand_in)}}
    manifest = read(directory)
    known: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, Call]] = {}
    errors: dict[str, Call] = {}
    for name, size in job.calls.items():
        try:
            known[name] = sized(manifest, size)
        except Exception as error:  # noqa: BLE001  # what ONNX Runtime raises is the finding
            errors[name] = Call(error=short(error))
    for file, graph in graphs(directory):
        with tempfile.TemporaryDirectory() as folder:
            found[file] = dict(errors)
            opened = Graph(directory / file, graph, stand_in, Path(folder))
            captured = {}
            for name, arrays in known.items():
                try:
                    values = opened.values(inputs_of(graph, arrays))
                    outputs = opened.run(name, values)
                    _pass_on(graph, arrays, outputs)
                    if name in job.captured:
                        captured[name] = opened.capture(values, outputs)
                except Exception as error:  # noqa: BLE001  # what ONNX Runtime raises is the finding
                    found[file][name] = Call(error=short(error))
            for name, record in opened.records().items():
                found[file][name] = msgspec.structs.replace(record, cuda_graph=captured.get(name, ""))
    return found


def of_file(path: Path, values: dict[str, int], stand_in: StandIn) -> Call:
    """One call of a file, on zeros and ``values``."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Graph(path, None, stand_in, Path(folder))
        dtypes = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float16)": np.float16}
        arrays = {
            port.name: np.full(port.shape, values.get(port.name, 0), dtypes.get(port.type, np.float32))
            for port in graph.session.get_inputs()
        }
        graph.run("call", graph.values(arrays))
        return graph.records()["call"]


def inputs_of(graph: Manifest | PartSpec, arrays: dict[str, Any]) -> dict[str, Any]:
    return dict(graph_feeds(graph.inputs, graph.input_names, arrays)) if isinstance(graph, PartSpec) else arrays


def _pass_on(graph: Manifest | PartSpec, arrays: dict[str, Any], outputs: dict[str, OrtValue]) -> None:
    """What later graphs take of this one's outputs: zeros, for nothing was computed."""
    if isinstance(graph, PartSpec):
        for own, whole in graph.output_names.items():
            if own in outputs:
                value = outputs[own]
                is_bfloat16 = value.data_type() == "tensor(bfloat16)"  # NumPy has none; of these the shape is read
                arrays[whole] = np.zeros(value.shape(), np.float32) if is_bfloat16 else value.numpy()


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    try:
        content: dict[str, Any] = {"graphs": answer(job)}
    except Exception as error:  # noqa: BLE001  # what ONNX Runtime raises is the finding
        content = {"error": short(error)}
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(content))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Arrays as OrtValues and back, calls with arrays that stay on the device, and calls captured as CUDA graphs.

NumPy has no bfloat16 (ml_dtypes adds it), and ONNX Runtime's Python bindings do not support it.

A CUDA graph reads and writes the memory that it was captured with. So each combination of shapes has separate device
buffers: a call copies its arrays into them, replays the graph, and copies the outputs out. ONNX Runtime refuses to open
a model that cannot be captured.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.runtime import wrapped_session
from posexport.runtime.wrapped_session import WrappedSession
from posexport.targets.dtypes import BFLOAT16, BY_ORT_TYPE
from posexport.targets.providers import HOST

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions


#: TensorProto.DataType of bfloat16
_BFLOAT16 = 16


def to_value(array: NDArray[Any], device: str = HOST) -> "OrtValue":
    """``array`` as an OrtValue on ``device``; it may share the array's memory."""
    from onnxruntime import OrtValue

    array = np.ascontiguousarray(array)
    if array.dtype.name != BFLOAT16.name:
        return OrtValue.ortvalue_from_numpy(array, device, 0)
    bits = array.view(np.uint16)
    if device == HOST:
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
    value = OrtValue.ortvalue_from_shape_and_type(array.shape, _BFLOAT16, device, 0)
    value.update_inplace(bits)
    return value


def to_array(value: "OrtValue") -> NDArray[Any]:
    """An OrtValue as an array on the host, with the same dtype."""
    dtype = BY_ORT_TYPE.get(value.data_type())
    if dtype is None or dtype != BFLOAT16:
        array: NDArray[Any] = value.numpy()
        return array
    (wide,) = _widen().run_with_ort_values(["y"], {"x": value})
    narrow: NDArray[Any] = wide.numpy().astype(BFLOAT16.numpy)
    return narrow


def run(
    session: "InferenceSession",
    names: Sequence[str],
    arrays: Mapping[str, NDArray[Any]],
    options: "RunOptions | None" = None,
) -> list[NDArray[Any]]:
    """Run a session; inputs and outputs may be of any dtype that a bundle may have, including bfloat16."""
    if (run_arrays := getattr(session, "run_arrays", None)) is not None:  # posexport.runtime.ort_values
        outputs: list[NDArray[Any]] = run_arrays(names, arrays)
        return outputs
    types = {value.name: value.type for value in session.get_outputs()}
    narrow = any(array.dtype.name == BFLOAT16.name for array in arrays.values())
    if not narrow and not any(types.get(name) == BFLOAT16.ort_type for name in names):
        return list(session.run(names, arrays, options))
    values = {name: to_value(array) for name, array in arrays.items()}
    return [to_array(value) for value in session.run_with_ort_values(names, values, options)]


@cache
def _widen() -> "InferenceSession":
    """A session that casts bfloat16 to float32, which is exact."""
    import onnx.parser
    from onnxruntime import InferenceSession

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> widen (bfloat16[] x) => (float[] y) {y = Cast <to = 1> (x)}'
    )
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run_bound(
    session: "InferenceSession",
    arrays: Mapping[str, NDArray[Any]],
    values: "Mapping[str, OrtValue]",
    outputs: "Mapping[str, OrtValue | str]",
) -> "list[OrtValue]":
    """The outputs of a call, by the order of ``outputs``: each is written into a buffer, or allocated on a device.

    ``arrays`` are inputs on the host, ``values`` inputs wherever they are. A static KV cache is an input and the buffer
    of an output.
    """
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_cpu_input(name, array)
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name, target in outputs.items():
        if isinstance(target, str):
            binding.bind_output(name, target, 0)
        else:
            binding.bind_ortvalue_output(name, target)
    with wrapped_session.denormals_as_zero():
        session.run_with_iobinding(binding)
    return list(binding.get_outputs())


def run_placed(
    session: "InferenceSession", values: "Mapping[str, OrtValue]", outputs: Sequence[str], device: str
) -> "list[OrtValue]":
    """The outputs of a call on ``device``, from inputs that have a default, which IO binding does not take."""
    from onnxruntime import OrtValue, RunOptions
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

    kinds = {"cpu": OrtDevice.cpu, "cuda": OrtDevice.cuda}
    place = OrtDevice(kinds[device](), OrtDevice.default_memory(), 0)
    feeds, fetches = OrtValueVector(), OrtValueVector()
    for value in values.values():
        feeds.push_back(value._ortvalue)  # noqa: SLF001  # the vector takes no other
    with wrapped_session.denormals_as_zero():
        session.run_with_ortvaluevector(
            RunOptions(), list(values), feeds, list(outputs), fetches, [place] * len(outputs)
        )
    return [OrtValue(value) for value in fetches]


#: maximum number of combinations of shapes that are captured; calls with further shapes run without a graph
MOST = 16
#: the run option with the id of the graph, and the id for a run without a graph
_GRAPH, _NONE = "gpu_graph_id", -1


@dataclass(frozen=True)
class _Held:
    """The buffers of one combination of shapes, and the binding and options that replay its graph."""

    inputs: "dict[str, OrtValue]"
    outputs: "list[OrtValue]"
    binding: "IOBinding"
    options: "RunOptions"


class CapturedSession(WrappedSession):
    """A session that captures and replays calls of `run_arrays`, which `posexport.runtime.ort_values.run` calls.

    It has no ``run``: ONNX Runtime would silently replay a graph on the arrays of another call. Metadata methods are
    those of the wrapped session. Thread-safe.
    """

    def __init__(self, session: "InferenceSession", device: str) -> None:
        super().__init__(session)
        self._device = device
        self._held: dict[tuple[Any, ...], _Held] = {}
        self._lock = threading.Lock()

    def run_arrays(self, names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs ``names`` for arrays by input name."""
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        key = (*names, *((name, array.dtype.str, array.shape) for name, array in sorted(arrays.items())))
        with self._lock:
            held = self._held.get(key)
            if held is None:
                if len(self._held) >= MOST or not all(array.size for array in arrays.values()):
                    return run(self._session, names, arrays, _run_options(_NONE))
                held = self._held[key] = self._begin(names, arrays)
            else:
                for name, array in arrays.items():
                    held.inputs[name].update_inplace(_bits(array))
            self._session.run_with_iobinding(held.binding, held.options)
            # copies, since the next call overwrites the buffers
            return [np.array(to_array(value)) for value in held.outputs]

    def _begin(self, names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> _Held:
        """Allocate buffers for arrays of these shapes and for the outputs of a run without a graph."""
        # a copy: on the host an OrtValue shares memory with its array
        inputs = {name: to_value(array.copy(), self._device) for name, array in arrays.items()}
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, self._device, 0)
        self._session.run_with_iobinding(binding, _run_options(_NONE))
        outputs = list(binding.get_outputs())
        binding.clear_binding_outputs()
        for name, value in zip(names, outputs, strict=True):
            binding.bind_ortvalue_output(name, value)
        return _Held(inputs, outputs, binding, _run_options(len(self._held) + 1))


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` for ``OrtValue.update_inplace``, which does not support ml_dtypes' bfloat16."""
    return array.view(np.uint16) if array.dtype.name == BFLOAT16.name else array


def _run_options(graph: int) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry(_GRAPH, str(graph))
    return options

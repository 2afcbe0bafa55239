"""Sessions that capture calls as CUDA graphs: one launch per call instead of one per kernel.

A CUDA graph reads and writes the memory that it was captured with. So each combination of shapes has separate device
buffers: a call copies its arrays into them, replays the graph, and copies the outputs out. ONNX Runtime refuses to open
a model that cannot be captured.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.runtime.ort_values import run, to_array, to_value
from posexport.runtime.wrapped_session import WrappedSession
from posexport.targets.dtypes import BFLOAT16

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

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

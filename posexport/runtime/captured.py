"""Calls that are captured as CUDA graphs: one launch in place of one for each kernel.

A graph reads and writes the memory that it was captured with. So each combination of shapes has buffers on the device
of its own: a call copies its arrays into them, replays, and copies the outputs out. ONNX Runtime refuses to open a
model that cannot be captured.
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

#: combinations of shapes that keep buffers and a graph; calls of others are not captured
MOST = 16
#: of a run: the number of its graph, and the one that means none
_GRAPH, _NONE = "gpu_graph_id", -1


@dataclass(frozen=True)
class _Held:
    """The buffers of one combination of shapes, and how its graph is run."""

    inputs: "dict[str, OrtValue]"
    outputs: "list[OrtValue]"
    binding: "IOBinding"
    options: "RunOptions"


class CapturedSession(WrappedSession):
    """A session whose calls are captured and replayed, by `run_arrays`, which is `posexport.runtime.ort_values.run`.

    What else is asked of a session is told. ONNX Runtime's own ways to run are not here: they would replay a graph on
    the arrays of another call, without a word. Threads may share it.
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
            # the next call writes there
            return [np.array(to_array(value)) for value in held.outputs]

    def _begin(self, names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> _Held:
        """Buffers for arrays of these shapes, and for the outputs that a run without a graph gives."""
        # on the host a value shares the array's memory, which is the caller's
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
    """As ONNX Runtime's bindings write it to a device: they do not know NumPy's bfloat16."""
    return array.view(np.uint16) if array.dtype.name == BFLOAT16.name else array


def _run_options(graph: int) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry(_GRAPH, str(graph))
    return options

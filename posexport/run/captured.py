"""Calls captured as CUDA graphs: of arrays, and decode steps on a static KV cache.

A CUDA graph reads and writes the memory that it was captured with. So each combination of shapes has separate device
buffers: a call copies its arrays into them, replays the graph, and copies the outputs out. ONNX Runtime refuses to open
a model that cannot be captured.

Steps on a static KV cache all have the same shapes if their mask is as wide as the cache
(`posexport.graph.passes.fixed_shape_steps`). The cache stays in its buffers.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import NUM_LOGITS
from posexport.run.ort_values import run, to_array, to_value, update
from posexport.run.wrapped_session import WrappedSession, denormals_as_zero

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding, OrtValue, RunOptions

#: maximum number of combinations of shapes that are captured; calls with further shapes run without a graph
MOST = 16
#: the capacity of a KV cache whose steps are captured is a multiple, so that generations share buffers
SLOTS = 256
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
    """A session that captures and replays calls of `run_arrays`, which `posexport.run.ort_values.run` calls.

    It has no ``run``: ONNX Runtime would silently replay a graph on the arrays of another call. Metadata methods are
    those of the wrapped session. Thread-safe: ONNX Runtime takes one call at a time where it captures.
    """

    def __init__(self, session: "InferenceSession", device: str) -> None:
        super().__init__(session)
        self._device = device
        self._held: dict[tuple[Any, ...], _Held] = {}
        self._graphs = 0
        #: steps without an owner, by the shapes of their inputs
        self._idle: dict[tuple[Any, ...], list[CapturedStep]] = {}
        self._lock = threading.Lock()

    def get_overridable_initializers(self) -> Any:
        """Without `NUM_LOGITS`: a graph is captured for the shapes of its inputs, and replayed for any values."""
        return [value for value in self._session.get_overridable_initializers() if value.name != NUM_LOGITS]

    def run_arrays(
        self, names: Sequence[str], arrays: Mapping[str, NDArray[Any]], options: "RunOptions | None" = None
    ) -> list[NDArray[Any]]:
        """The outputs ``names`` for arrays by input name; ``options`` are those of a graph."""
        del options
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        key = (*names, *((name, array.dtype.str, array.shape) for name, array in sorted(arrays.items())))
        with self._lock:
            held = self._held.get(key)
            if held is None:
                graph = self._next_graph() if all(array.size for array in arrays.values()) else None
                if graph is None:
                    return run(self._session, names, arrays, uncaptured())
                held = self._held[key] = self._begin(names, arrays, graph)
            else:
                for name, array in arrays.items():
                    update(held.inputs[name], array)
            self._session.run_with_iobinding(held.binding, held.options)
            # copies, since the next call overwrites the buffers
            return [np.array(to_array(value)) for value in held.outputs]

    def _next_graph(self) -> "RunOptions | None":
        if self._graphs == MOST:
            return None
        self._graphs += 1
        return _run_options(self._graphs)

    def _begin(self, names: Sequence[str], arrays: Mapping[str, NDArray[Any]], options: "RunOptions") -> _Held:
        """Allocate buffers for arrays of these shapes and for the outputs of a run without a graph."""
        # a copy: on the host an OrtValue shares memory with its array
        inputs = {name: to_value(array.copy(), self._device) for name, array in arrays.items()}
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, self._device, 0)
        self._session.run_with_iobinding(binding, uncaptured())
        outputs = list(binding.get_outputs())
        binding.clear_binding_outputs()
        for name, value in zip(names, outputs, strict=True):
            binding.bind_ortvalue_output(name, value)
        return _Held(inputs, outputs, binding, options)

    def run_with_iobinding(self, binding: "IOBinding", options: "RunOptions | None" = None) -> None:
        """Run without a graph, unless ``options`` name one."""
        with self._lock:
            self._session.run_with_iobinding(binding, options or uncaptured())

    def io_binding(self) -> "IOBinding":
        binding: IOBinding = self._session.io_binding()
        return binding

    def step(
        self,
        owner: object,
        arrays: Mapping[str, NDArray[Any]],
        cache: Mapping[str, tuple[str, NDArray[Any]]],
        logits: tuple[str, NDArray[Any]],
    ) -> "CapturedStep | None":
        """Buffers and a graph for steps, ``owner``'s until it is garbage; None if no more graphs are captured.

        Args:
            owner: who steps.
            arrays: the inputs of a step but the cache, of any content.
            cache: the static KV cache by input: its output, and its first content.
            logits: the output, and an array of its shape and type.
        """
        key = tuple((name, array.shape) for name, array in arrays.items())
        with self._lock:
            idle = self._idle.setdefault(key, [])
            if idle:
                step = idle.pop()
                step.begin({name: array for name, (_, array) in cache.items()})
            elif (options := self._next_graph()) is not None:
                step = CapturedStep(self, options, self._device, arrays, cache, logits)
            else:
                return None
        weakref.finalize(owner, idle.append, step)
        return step


class CapturedStep:
    """A decode step on buffers that stay where they are. ``cache``: those of the KV cache, by the input's name."""

    def __init__(
        self,
        session: CapturedSession,
        options: "RunOptions",
        device: str,
        arrays: Mapping[str, NDArray[Any]],
        cache: Mapping[str, tuple[str, NDArray[Any]]],
        logits: tuple[str, NDArray[Any]],
    ) -> None:
        self._session, self._options = session, options
        # copies: on the host an OrtValue shares memory with its array
        self._inputs = {name: to_value(array.copy(), device) for name, array in arrays.items()}
        self.cache = {name: to_value(array.copy(), device) for name, (_, array) in cache.items()}
        self._logits = to_value(logits[1].copy(), device)
        self._binding = session.io_binding()
        for name, value in (self._inputs | self.cache).items():
            self._binding.bind_ortvalue_input(name, value)
        self._binding.bind_ortvalue_output(logits[0], self._logits)
        for name, (output, _) in cache.items():
            self._binding.bind_ortvalue_output(output, self.cache[name])

    def begin(self, cache: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite the KV cache with the arrays, by the names of its inputs."""
        for name, array in cache.items():
            update(self.cache[name], array)

    def __call__(self, arrays: Mapping[str, NDArray[Any]]) -> "OrtValue":
        """The logits, in a buffer that the next step overwrites; the cache is written in place.

        The first call runs twice, without a graph and to capture one: both write the same.
        """
        for name, array in arrays.items():
            update(self._inputs[name], array)
        with denormals_as_zero():
            self._session.run_with_iobinding(self._binding, self._options)
        return self._logits


def uncaptured() -> "RunOptions":
    """Options of a run without a graph in a session that captures."""
    return _run_options(_NONE)


def _run_options(graph: int) -> "RunOptions":
    from onnxruntime import RunOptions

    options = RunOptions()
    options.add_run_config_entry(_GRAPH, str(graph))
    return options

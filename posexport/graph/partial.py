"""Extracts and runs a subgraph: passes recognise what a module computes by its outputs for chosen inputs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.system.threads import session_threads
from posexport.graph.queries import sizes

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = NDArray[Any]


class Subgraph:
    """The subgraph that computes ``outputs`` from ``free`` values, which are fed, and from the graph's inputs.

    Attributes:
        inputs: the graph's inputs except free ones.
        model: the subgraph as a model, with all functions.
    """

    def __init__(self, model: ir.Model, outputs: Sequence[ir.Value], free: Sequence[ir.Value] = ()) -> None:
        self.outputs, self.free = outputs, free
        self.inputs = [value for value in model.graph.inputs if value not in free]
        inner = list(dict.fromkeys(value for value in outputs if value not in free))
        self._names = [value.name or "" for value in inner]
        graph = ir.convenience.extract(model.graph, [*free, *self.inputs], inner)
        for value in free:
            graph.initializers.pop(value.name or "", None)
        self.model = ir.Model(graph, ir_version=model.ir_version, functions=[*model.functions.values()])
        self.model.opset_imports.update(model.opset_imports)

    @property
    def is_standard(self) -> bool:
        """Whether all operators are standard ONNX operators."""
        return not any(node.domain for node in self.model.graph)

    @property
    def is_closed(self) -> bool:
        """Whether it depends on free values, constants and input sizes only, and has only standard operators."""
        return self.is_standard and not self.reads_inputs

    @property
    def reads_inputs(self) -> bool:
        """Whether it reads elements of the graph's inputs, not only their shapes."""
        rest = self.model.graph.inputs[len(self.free) :]
        return any(user.op_type != "Shape" for value in rest for user, _ in value.uses())

    def run(self, arrays: Mapping[ir.Value, Array], lengths: Mapping[str, int] | None = None) -> list[Array] | None:
        """Compute the outputs with ONNX Runtime on the CPU; None if it fails.

        Args:
            arrays: arrays for every free value and for inputs; other inputs are zeros.
            lengths: sizes of named axes of these inputs; others are 1.
        """
        feeds: dict[str, Array] = {value.name or "": array for value, array in arrays.items()}
        for value in self.inputs:
            if value not in arrays:
                dtype = (value.dtype or ir.DataType.FLOAT).numpy()
                feeds[value.name or ""] = np.zeros(shape(value, lengths or {}), dtype)
        try:
            results = dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        except Exception:  # noqa: BLE001 (onnxruntime raises a different class for each reason)
            return None
        return [arrays[value] if value in arrays else np.asarray(results[value.name or ""]) for value in self.outputs]

    def for_samples(self, samples: Iterable[Mapping[str, Array]]) -> Iterator[list[Array] | None]:
        """The outputs for each of ``samples``, the graph's inputs by name."""
        for feeds in samples:
            yield self.run(
                {value: feeds[value.name] for value in self.inputs if value.name is not None and value.name in feeds}
            )

    @cached_property
    def _session(self) -> "InferenceSession":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4  # failures are expected
        options.intra_op_num_threads = session_threads()
        options.enable_cpu_mem_arena = False  # of thousands of tokens an arena keeps what no node needs any more
        serialized = ir.to_proto(self.model).SerializeToString()
        return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def shape(value: ir.Value, lengths: Mapping[str, int]) -> list[int]:
    """The shape of ``value``, with the sizes of named axes from ``lengths``, 1 by default."""
    return [lengths.get(size, 1) if isinstance(size, str) else size for size in sizes(value) or ()]

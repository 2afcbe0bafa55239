"""Calls of any size on a graph with static sizes: rows in batches of its size, shorter rows padded to its length.

Imports no torch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.bounds import Bound
from posexport.base.spec import BATCH, SEQUENCE, STATIC_SIZES, InputSpec, OutputSpec
from posexport.errors import PosexportError
from posexport.run.ort_values import run
from posexport.run.wrapped_session import Port, WrappedSession

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Array = NDArray[Any]


def _with_axes(value: Any, specs: Mapping[str, InputSpec] | Mapping[str, OutputSpec]) -> Any:
    """A session's NodeArg with the axes of its record, if it has one."""
    return Port(value.name, value.type, specs[value.name].axes) if value.name in specs else value


class StaticSession(WrappedSession):
    """A session of a graph with static axes ``sizes``; `posexport.run.ort_values.run` calls it.

    Padded tokens are not in its outputs.
    """

    def __init__(
        self, session: Any, sizes: Mapping[str, int], inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
    ) -> None:
        super().__init__(session)
        self._sizes = sizes
        self._inputs = {spec.name: spec for spec in inputs}
        self._outputs = {spec.name: spec for spec in outputs}

    def get_inputs(self) -> Any:
        """The inputs with the axes that calls may have."""
        return [_with_axes(value, self._inputs) for value in self._session.get_inputs()]

    def get_outputs(self) -> Any:
        return [_with_axes(value, self._outputs) for value in self._session.get_outputs()]

    def run_arrays(
        self, names: Sequence[str], arrays: Mapping[str, Array], options: "RunOptions | None" = None
    ) -> list[Array]:
        """The outputs ``names`` for arrays by input name; PosexportError for rows and images that do not fit."""
        given = {axis: self._size(arrays, axis) for axis in {BATCH, SEQUENCE, *self._sizes}}
        for axis, size in self._sizes.items():
            if axis != BATCH and given[axis] > size:
                raise PosexportError(Bound(axis, size).message)
            if axis not in (BATCH, SEQUENCE) and given[axis] < size:
                raise PosexportError(Bound(axis, size, "minimum").message)
        calls = [run(self._session, names, feeds, options) for feeds in self.calls(arrays)]
        outputs = []
        for name, parts in zip(names, zip(*calls, strict=True), strict=True):
            axes = self._outputs[name].axes if name in self._outputs else ()
            array = parts[0] if BATCH not in axes else np.concatenate(parts, axes.index(BATCH))
            outputs.append(array[tuple(slice(given.get(str(axis))) for axis in axes)])
        return outputs

    def calls(self, arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """The inputs of each call of the graph: rows in batches of its size, padded to its length."""
        padded = {name: self._padded(array, self._inputs[name]) for name, array in arrays.items()}
        batch = self._size(arrays, BATCH)
        step = self._sizes.get(BATCH, batch)
        for start in range(0, batch, step):
            yield self._rows(padded, start, step)

    def _size(self, arrays: Mapping[str, Array], axis: str) -> int:
        sizes = (
            array.shape[self._inputs[name].axes.index(axis)]
            for name, array in arrays.items()
            if axis in self._inputs[name].axes
        )
        return next(sizes, 1)

    def _padded(self, array: Array, spec: InputSpec) -> Array:
        """``array`` padded on the right to the graph's length."""
        if SEQUENCE not in spec.axes or SEQUENCE not in self._sizes:
            return array
        axis = spec.axes.index(SEQUENCE)
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, max(self._sizes[SEQUENCE] - array.shape[axis], 0))
        return np.pad(array, widths, constant_values=spec.padding if spec.role in ("tokens", "mask") else 0)

    def _rows(self, arrays: Mapping[str, Array], start: int, count: int) -> dict[str, Array]:
        """``count`` rows from ``start`` on; the last one again where there are fewer."""
        return {
            name: np.take(array, range(start, start + count), axis, mode="clip")
            if (axis := _index(self._inputs[name].axes, BATCH)) is not None
            else array
            for name, array in arrays.items()
        }


def _index(axes: Sequence[Any], axis: str) -> int | None:
    return axes.index(axis) if axis in axes else None


def with_any_sizes(session: "InferenceSession") -> "InferenceSession":
    """``session``, as a `StaticSession` where its graph has static sizes."""
    metadata = session.get_modelmeta().custom_metadata_map
    if STATIC_SIZES not in metadata:
        return session
    inputs = msgspec.json.decode(metadata["posexport.inputs"], type=list[InputSpec])
    outputs = msgspec.json.decode(metadata["posexport.outputs"], type=list[OutputSpec])
    return cast("InferenceSession", StaticSession(session, json.loads(metadata[STATIC_SIZES]), inputs, outputs))

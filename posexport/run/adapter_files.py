"""Adapters in files for ONNX Runtime, ``.onnx_adapter``: A and B are inputs of the graph, whose defaults are zeros.

The session in the graph's place takes the adapter of each row, as a graph does that holds all adapters. ONNX Runtime
has one adapter in a call, so that rows with several take one call for each.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import ADAPTER_FILES, ADAPTERS, BATCH
from posexport.errors import PosexportError
from posexport.run.ort_values import to_array, to_value
from posexport.run.wrapped_session import Port, WrappedSession

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

Array = NDArray[Any]
#: A and B of an adapter, by the graph's inputs
Parameters = Mapping[str, Array]


def write(path: Path, parameters: Parameters) -> None:
    """Write an adapter's A and B as ``onnxruntime.LoraAdapter`` reads them."""
    from onnxruntime import AdapterFormat

    adapter = AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({name: to_value(array) for name, array in parameters.items()})
    adapter.export_adapter(str(path))


def read(path: Path) -> Parameters:
    """A and B of an adapter; PosexportError for a file that is not there or no adapter."""
    from onnxruntime import AdapterFormat

    try:
        adapter = AdapterFormat.read_adapter(str(path))  # the values are in its memory
        return {name: to_array(value).copy() for name, value in adapter.get_parameters().items()}
    except Exception as err:  # onnxruntime's exceptions share no base class
        raise PosexportError(f"{path} is no adapter that ONNX Runtime reads; convert the bundle again") from err


class AdapterFilesSession(WrappedSession):
    """A session of a graph with ``adapters``, numbered from 1 on, that takes `ADAPTERS` in place of A and B."""

    def __init__(self, session: Any, adapters: Sequence[Parameters]) -> None:
        super().__init__(session)
        self._adapters: list[Parameters] = [{}, *adapters]
        self._batch = {value.name: value.shape.index(BATCH) for value in session.get_outputs() if BATCH in value.shape}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_overridable_initializers(self) -> Any:
        values = self._session.get_overridable_initializers()
        parameters = {name for adapter in self._adapters for name in adapter}
        ids = Port(ADAPTERS, "tensor(int64)", [BATCH])
        return [*(value for value in values if value.name not in parameters), ids]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array], options: Any = None) -> list[Array]:
        names = names or [value.name for value in self.get_outputs()]
        feeds = dict(feeds)
        ids = feeds.pop(ADAPTERS, np.zeros(1, np.int64))
        return self._by_rows(names, ids, lambda adapter: self._session.run(names, {**feeds, **adapter}, options))

    def run_with_ortvaluevector(
        self, options: Any, names: Sequence[str], feeds: Any, outputs: Sequence[str], fetches: Any, places: Any
    ) -> None:
        """As `posexport.run.ort_values.run_placed` calls it."""
        from onnxruntime import OrtValue
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        given = dict(zip(names, feeds, strict=True))
        ids = given.pop(ADAPTERS, None)

        def call(adapter: Parameters) -> list[Any]:
            values = {**given, **{name: to_value(array)._ortvalue for name, array in adapter.items()}}  # noqa: SLF001
            vector, found = OrtValueVector(), OrtValueVector()
            for value in values.values():
                vector.push_back(value)
            self._session.run_with_ortvaluevector(options, list(values), vector, list(outputs), found, places)
            return list(found)

        numbers = np.zeros(1, np.int64) if ids is None else ids.numpy()
        if len(np.unique(numbers)) == 1:
            found = call(self._adapters[numbers[0]])
        else:
            arrays = self._by_rows(outputs, numbers, lambda a: [to_array(OrtValue(value)).copy() for value in call(a)])
            found = [_owned(array)._ortvalue for array in arrays]  # noqa: SLF001
        for value in found:
            fetches.push_back(value)

    def _by_rows(
        self, names: Sequence[str], ids_B: NDArray[np.int64], call: Callable[[Parameters], list[Array]]
    ) -> list[Array]:
        """The outputs of ``call``, each row from the call with its adapter."""
        first, *others = np.unique(ids_B).tolist()
        outputs = call(self._adapters[first])
        for number in others:
            rows = np.flatnonzero(ids_B == number)
            for name, whole, value in zip(names, outputs, call(self._adapters[number]), strict=True):
                axis = self._batch[name]
                np.moveaxis(whole, axis, 0)[rows] = np.moveaxis(value, axis, 0)[rows]
        return outputs


def _owned(array: Array) -> "OrtValue":
    """``array`` in memory of ONNX Runtime, which outlives it."""
    from onnxruntime import OrtValue

    value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type)
    value.update_inplace(array)
    return value


def with_adapter_files(session: "InferenceSession", folder: Path) -> "InferenceSession":
    """``session``, as an `AdapterFilesSession` where its graph has adapters in files of ``folder``."""
    metadata = session.get_modelmeta().custom_metadata_map
    if ADAPTER_FILES not in metadata:
        return session
    adapters = [read(folder / file) for file in json.loads(metadata[ADAPTER_FILES])]
    return cast("InferenceSession", AdapterFilesSession(session, adapters))

"""Sessions with zeros for large weights, for calls of which only the shapes count.

The check of axes would otherwise read all weights of the file: of a float32 model of a billion weights 5 GB, which is
five times what the rest of its conversion has in memory.
"""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

#: of weights: integers of other types may be indices or sizes
_TYPES = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.INT8: np.int8,
}
#: values of a tensor that is a weight, not a number by which a shape is computed
_LARGE = 1 << 18


class ZeroWeights:
    """``make``, with zeros for the large weights of a file; they are one buffer of pages that are never written to.

    It must outlive the sessions that it opens.
    """

    def __init__(self, make: "Callable[..., InferenceSession]") -> None:
        self._make = make
        self._held: list[OrtValue] = []

    def __call__(self, model: Path | bytes, **options: Any) -> "InferenceSession":
        """A session of ``model``; one in bytes keeps its weights. ``options``: of ``make``."""
        initializers = self._zeros(model) if isinstance(model, Path) else {}
        self._held += initializers.values()
        return self._make(model, initializers=initializers, **options)

    @staticmethod
    def _zeros(model: Path) -> "dict[str, OrtValue]":
        from onnxruntime import OrtValue

        graph = onnx.load(model, load_external_data=False).graph
        weights = [
            (tensor.name, tuple(tensor.dims), np.dtype(_TYPES[tensor.data_type]))
            for tensor in graph.initializer
            if uses_external_data(tensor) and tensor.data_type in _TYPES and prod(tensor.dims) >= _LARGE
        ]
        zeros = np.zeros(max((prod(dims) * dtype.itemsize for _, dims, dtype in weights), default=0), np.uint8)
        return {
            name: OrtValue.ortvalue_from_numpy(zeros[: prod(dims) * dtype.itemsize].view(dtype).reshape(dims))
            for name, dims, dtype in weights
        }

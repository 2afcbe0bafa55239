"""``index_put`` by int32 indices, as ``torch.istft`` and ``fold`` of windows become, with indices in int64.

PyTorch's exporter writes ScatterND with them as they are, which ONNX has with int64 alone.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18 as op18
from onnxscript.function_libs.torch_lib.ops.core import aten_index_put

OPERATORS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)  # noqa: SLF001


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """The translation of `OPERATORS`."""
    return aten_index_put(x, [_as_int64(index) for index in indices], values, accumulate)


def _as_int64(index: Any) -> Any:
    if index is None or index.dtype != ir.DataType.INT32:
        return index
    whole: Any = op18.Cast(index, to=ir.DataType.INT64)
    whole.shape, whole.dtype = index.shape, ir.DataType.INT64
    return whole

"""Converts arrays to ONNX Runtime's OrtValues and back, including bfloat16.

NumPy has no bfloat16 (ml_dtypes adds it), and ONNX Runtime's Python bindings do not support it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.targets.dtypes import BFLOAT16, BY_ORT_TYPE
from posexport.targets.providers import HOST

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue, RunOptions

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
    if (run_arrays := getattr(session, "run_arrays", None)) is not None:  # posexport.runtime.captured
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

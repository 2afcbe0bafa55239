"""Arrays as OrtValues and back, and calls with arrays that stay on the device.

NumPy has no bfloat16 (ml_dtypes adds it), and ONNX Runtime's Python bindings do not support it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.dtypes import BFLOAT16, BY_ORT_TYPE
from posexport.base.targets.providers import HOST
from posexport.run import wrapped_session

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


def update(value: "OrtValue", array: NDArray[Any]) -> None:
    """Overwrite an OrtValue, wherever it is, by an array of its shape and type."""
    value.update_inplace(np.ascontiguousarray(array.view(np.uint16) if array.dtype.name == BFLOAT16.name else array))


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
    if (run_arrays := getattr(session, "run_arrays", None)) is not None:  # a session in the place of ONNX Runtime's
        outputs: list[NDArray[Any]] = run_arrays(names, arrays, options)
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
    from onnxruntime import InferenceSession, SessionOptions

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> widen (bfloat16[] x) => (float[] y) {y = Cast <to = 1> (x)}'
    )
    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


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

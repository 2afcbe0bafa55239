"""ONNX Runtime calls with arrays that stay on the device (IOBinding), with denormals as 0."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from posexport.runtime import denormals

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue


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
    with denormals.as_zero():
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
    with denormals.as_zero():
        session.run_with_ortvaluevector(
            RunOptions(), list(values), feeds, list(outputs), fetches, [place] * len(outputs)
        )
    return [OrtValue(value) for value in fetches]

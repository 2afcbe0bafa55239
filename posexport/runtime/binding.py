"""Calls of ONNX Runtime whose arrays stay on the device: IO binding."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

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
    session.run_with_iobinding(binding)
    return list(binding.get_outputs())

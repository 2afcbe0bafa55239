"""Why ONNX Runtime's CUDA provider does not load: the library or the device that is missing."""

import contextlib
import ctypes
import io
import re
import sys
from pathlib import Path

LIBRARY = "onnxruntime_providers_cuda"


def preload() -> None:
    """Load CUDA's libraries from the nvidia wheels, if they are installed, or from where the system keeps them."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints; `load_failure` says the same in one sentence
            onnxruntime.preload_dlls()


def load_failure(error: str) -> str | None:
    """Why the provider did not load, ``error`` being what ONNX Runtime raised; None where no reason is known.

    To be asked after ONNX Runtime has tried in vain: loaded before, its provider library takes a wrong turn.
    """
    if reason := missing():
        return reason
    failure = re.search(r"CUDA failure (\d+): ([^;]+)", error)
    return f"CUDA failure {failure[1]}, {failure[2].strip()}" if failure else None


def missing() -> str | None:
    """The library or the device that is not here, asked of the loader and of CUDA's driver; None if there is none."""
    import onnxruntime

    suffix = ".dll" if sys.platform == "win32" else ".so"
    prefix = "" if sys.platform == "win32" else "lib"
    capi = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(capi / f"{prefix}{LIBRARY}{suffix}"))
    except OSError as err:
        missing = re.match(r"(\S+): cannot open shared object file", str(err))
        library = f"the library {missing[1]} is missing" if missing else str(err)
        return f"{library}; install the CUDA and cuDNN that onnxruntime {onnxruntime.__version__} asks for"
    return _no_device()


def _no_device() -> str | None:
    """What CUDA's driver says about devices, asked directly."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"the NVIDIA driver's library {name} is missing; install the driver"
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or count.value == 0:
        return f"the NVIDIA driver finds no usable CUDA device (cuInit: {code}, devices: {count.value})"
    return None

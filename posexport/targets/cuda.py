"""ONNX Runtime's CUDA provider: loading its libraries, and why it does not load."""

import contextlib
import ctypes
import importlib.util
import io
import re
import sys
from pathlib import Path

from posexport.targets import cuda_errors, cuda_libraries

LIBRARY = "onnxruntime_providers_cuda"


def preload() -> None:
    """Load CUDA's libraries from the nvidia wheels, if they are installed, or from where the system keeps them."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints; `load_failure` says the same in one sentence
            # ONNX Runtime searches only its package folder
            for folder in _elsewhere(Path(onnxruntime.__file__).parents[1]):
                onnxruntime.preload_dlls(directory=str(folder))
            onnxruntime.preload_dlls()


def _elsewhere(site: Path) -> list[Path]:
    """Folders of libraries in nvidia wheels that are installed in another place than ``site``."""
    package = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (package.submodule_search_locations or ())] if package is not None else []
    return [folder for root in roots if root.parent != site for folder in sorted(root.glob("*/lib"))]


def load_failure(error: str) -> str | None:
    """Why the provider did not load, ``error`` being what ONNX Runtime raised; None where no reason is known.

    Call it only after ONNX Runtime has failed: if the driver is loaded before, its provider library fails differently.
    """
    return cuda_errors.explained(error) or missing()


def missing() -> str | None:
    """A sentence on missing CUDA libraries or a missing device, from the loader and CUDA's driver; None if complete."""
    import onnxruntime

    suffix = ".dll" if sys.platform == "win32" else ".so"
    prefix = "" if sys.platform == "win32" else "lib"
    path = Path(onnxruntime.__file__).parent / "capi" / f"{prefix}{LIBRARY}{suffix}"
    try:
        ctypes.CDLL(str(path))
    except OSError as err:
        return unloadable(str(err), built_for())
    if reason := _no_device():
        return reason
    # what it looks up by name, not before it is needed
    absent = cuda_libraries.absent(None, built_for()) if sys.platform == "linux" else []
    return cuda_libraries.sentence(absent, built_for()) if absent else None


def unloadable(error: str, cuda: int) -> str:
    """What the loader's ``error`` about a provider that is built for that CUDA means."""
    if (first := cuda_libraries.named(error)) is None:
        return error
    if first.startswith("libcuda.so"):
        return f"the NVIDIA driver's library {first} is missing; install the driver"
    return cuda_libraries.sentence(cuda_libraries.absent(first, cuda), cuda)


def built_for() -> int:
    """The major version of the CUDA that the installed onnxruntime-gpu is built for; 0 where it does not say."""
    import onnxruntime

    version = re.match(r"\d+", str(getattr(onnxruntime, "cuda_version", "")))
    return int(version[0]) if version else 0


def _no_device() -> str | None:
    """The message of CUDA's driver about devices."""
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

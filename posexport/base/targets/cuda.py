"""ONNX Runtime's CUDA provider: loading its libraries, and why it does not load.

The numbers are values of CUDA's ``cudaError_t``; ONNX Runtime writes ``CUDA failure 35: CUDA driver version is ...``.
"""

import contextlib
import ctypes
import importlib.util
import io
import re
import sys
from pathlib import Path

from posexport.base.targets import cuda_libraries

_OTHERS = "nvidia-smi lists what runs on it; end that, or choose another card with CUDA_VISIBLE_DEVICES"
_BY_CODE = {
    2: f"the card's memory is full: {_OTHERS}, or use a smaller batch, a shorter input or a smaller precision",
    3: "the NVIDIA driver does not start: restart it, or look at nvidia-smi",
    35: "the NVIDIA driver is too old for the CUDA that this onnxruntime-gpu is built for: install a newer driver (580 "
    "or later for CUDA 13, 525 for CUDA 12), or an onnxruntime-gpu for an older CUDA",
    46: f"the card is held by another process (its compute mode is exclusive) or unavailable: {_OTHERS}",
    100: "there is no CUDA device, or CUDA_VISIBLE_DEVICES hides it: nvidia-smi lists those that there are",
    101: "there is no CUDA device of that number: see CUDA_VISIBLE_DEVICES and nvidia-smi",
    209: "this onnxruntime-gpu has no kernels for this card: install a version that supports its compute capability",
    802: "the card is not ready yet: wait until nvidia-fabricmanager has started, or restart it",
    803: "the NVIDIA driver and its libraries have different versions: restart the machine after the driver's upgrade",
    804: "the NVIDIA driver does not run this CUDA on this card: install a newer driver",
}
_MEMORY = 2
_FAILURE = re.compile(r"(CUDA|CUDNN|CUBLAS|CUFFT|CURAND) failure (\d+): ([^;\n]+)")
#: of ONNX Runtime's arena: its limit, or the card's memory, is reached
_ARENA = re.compile(
    r"Failed to allocate memory for requested buffer of size (\d+)"
    r"|Available memory of (?P<free>\d+) is smaller than requested bytes of (?P<asked>\d+)"
)
#: cuBLAS and cuDNN say so too
_ALLOCATION = re.compile(r"ALLOC_FAILED|out of memory", re.IGNORECASE)


def failed(error: str) -> str | None:
    """Why CUDA or one of its libraries failed, and what to do; None where ``error`` says nothing of one."""
    if failure := _FAILURE.search(error):
        library, code, said = failure[1], int(failure[2]), failure[3].strip()
        if library == "CUDA" and code in _BY_CODE:
            return f"{_BY_CODE[code]} (CUDA failure {code})"
        if _ALLOCATION.search(said):
            return f"{_BY_CODE[_MEMORY]} ({library} failure {code})"
        return f"{library} failure {code}, {said}"
    return None


def explained(error: str) -> str | None:
    """`failed`, or that memory for a model on the card was not to be had."""
    if reason := failed(error):
        return reason
    if arena := _ARENA.search(error):
        requested = int(arena["asked"] or arena[1])
        if arena["free"]:
            room = f"{_megabytes(int(arena['free']))} are left of the memory_limit that was given"
            return f"{_megabytes(requested)} more are needed, and {room}: raise it"
        return f"{_megabytes(requested)} more were needed and not to be had: {_BY_CODE[_MEMORY]}"
    return None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size} bytes"


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
    return explained(error) or missing()


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

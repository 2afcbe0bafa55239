"""CUDA's libraries that ONNX Runtime loads, and the packages on PyPI that have them."""

import ctypes
import re
from collections.abc import Callable, Iterable

#: libraries of one CUDA, in the order in which they need each other -> package; cuDNN and cuFFT are loaded by name
_PACKAGES: dict[int, dict[str, str]] = {
    13: {
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libcublasLt.so.13": "nvidia-cublas",
        "libcublas.so.13": "nvidia-cublas",
        "libcurand.so.10": "nvidia-curand",
        "libcufft.so.12": "nvidia-cufft",
        "libnvrtc.so.13": "nvidia-cuda-nvrtc",
        "libcudnn.so.9": "nvidia-cudnn-cu13",
    },
    12: {
        "libcudart.so.12": "nvidia-cuda-runtime-cu12",
        "libcublasLt.so.12": "nvidia-cublas-cu12",
        "libcublas.so.12": "nvidia-cublas-cu12",
        "libcurand.so.10": "nvidia-curand-cu12",
        "libcufft.so.11": "nvidia-cufft-cu12",
        "libnvrtc.so.12": "nvidia-cuda-nvrtc-cu12",
        "libcudnn.so.9": "nvidia-cudnn-cu12",
    },
}
#: what the loader says of a library that it does not find: glibc's dlopen, ONNX Runtime around it, musl's
_NOT_FOUND = (
    re.compile(r"(?:^|[\s'\"])(lib[\w.+-]+\.so[\d.]*): cannot open shared object file"),
    re.compile(r"Error loading shared library (lib[\w.+-]+\.so[\d.]*)"),
)


def named(error: str) -> str | None:
    """The library that a loader's message says is not there; None for another message."""
    match = next(filter(None, (pattern.search(error) for pattern in _NOT_FOUND)), None)
    return match[1] if match else None


def absent(first: str | None, cuda: int, loads: "Callable[[str], bool] | None" = None) -> list[str]:
    """The libraries of that CUDA that are not here, ``first`` at their head: a loader names one at a time.

    ``loads``: whether a library can be loaded; the default asks the dynamic loader.
    """
    here = loads or _loads
    others = [name for name in _PACKAGES.get(cuda, {}) if name != first and not here(name)]
    return others if first is None else [first, *others]


def sentence(missing: Iterable[str], cuda: int) -> str:
    """A sentence with the missing library and the command that installs it."""
    names, known = list(missing), _PACKAGES.get(cuda, {})
    packages = list(dict.fromkeys(known[name] for name in names if name in known))
    what = f"the {'library' if len(names) == 1 else 'libraries'} {_listed(names)} {'is' if len(names) == 1 else 'are'}"
    if not packages:
        return f"{what} missing; install the CUDA {cuda} and cuDNN that this onnxruntime-gpu is built for"
    return f"{what} missing: pip install {' '.join(packages)} (or the CUDA {cuda} and cuDNN 9 of your system)"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True

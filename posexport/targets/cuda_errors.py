"""What ONNX Runtime says when CUDA fails, in a sentence with what to do.

The numbers are values of CUDA's ``cudaError_t``; ONNX Runtime writes ``CUDA failure 35: CUDA driver version is ...``.
"""

import re

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

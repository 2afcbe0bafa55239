"""llama.cpp through its C interface, of the libraries in npm's ``@node-llama-cpp/linux-x64``.

Structures of parameters are passed as they come, as bytes: of the version that is pinned only the numbers that are set
are known here, and they are compared with their defaults before. ``options``: ``float32`` computes attention in
float32, with keys and values in float32; by default llama.cpp has both in fp16.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.bench.workers.job import Job, Reader, main

_LIBRARIES = Path(sys.prefix, "node_modules", "@node-llama-cpp", "linux-x64", "bins", "linux-x64")
#: a context's numbers by place, with their defaults: tokens of the context, flash attention, types of keys and values
_TOKENS, _FLASH, _KEYS, _VALUES = 0, 13, 26, 27
_DEFAULTS = {_TOKENS: 512, 1: 2048, 2: 512, _FLASH: 2**32 - 1, _KEYS: 1, _VALUES: 1}


class Parameters(ctypes.Structure):
    """Parameters of a model or of a context, longer than either: a callee reads and writes its part."""

    _fields_ = (("numbers", ctypes.c_uint32 * 1024),)


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = (("count", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


def _library() -> ctypes.CDLL:
    for name in ("libggml-base.so", *sorted(path.name for path in _LIBRARIES.glob("libggml.v*.so"))):
        loaded = ctypes.CDLL(str(_LIBRARIES / name), mode=ctypes.RTLD_GLOBAL)
    loaded.ggml_backend_load_all_from_path(os.fsencode(_LIBRARIES))  # the kernels of this processor
    (path,) = _LIBRARIES.glob("libllama.v*.so")
    library = ctypes.CDLL(str(path))
    library.llama_model_default_params.restype = Parameters
    library.llama_context_default_params.restype = Parameters
    library.llama_batch_get_one.restype = Batch
    library.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory"):
        getattr(library, name).restype = ctypes.c_void_p
    return library


class Context:
    """One sequence; the logits of a call's last token."""

    def __init__(self, job: Job) -> None:
        self._library, self._job = _library(), job
        if job.batch != 1:
            raise SystemExit("llama.cpp is measured with one row")
        model = self._library.llama_model_load_from_file(
            os.fsencode(job.model), self._library.llama_model_default_params()
        )
        if not model:
            raise SystemExit(f"llama.cpp does not load {job.model}")
        parameters = self._library.llama_context_default_params()
        numbers = parameters.numbers
        if (defaults := {place: numbers[place] for place in _DEFAULTS}) != _DEFAULTS:
            raise SystemExit(f"the parameters of a context are {defaults} by default, not {_DEFAULTS}")
        numbers[_TOKENS] = job.room
        if job.options.get("float32"):
            numbers[_FLASH] = numbers[_KEYS] = numbers[_VALUES] = 0
        self._context = ctypes.c_void_p(self._library.llama_init_from_model(ctypes.c_void_p(model), parameters))
        self._library.llama_set_n_threads(self._context, job.threads, job.threads)
        self._memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))

    def clear(self) -> None:
        self._library.llama_memory_clear(self._memory, True)

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        tokens = np.ascontiguousarray(ids[0], np.int32)
        pointer = ctypes.c_void_p(tokens.ctypes.data)
        batch = self._library.llama_batch_get_one(pointer, len(tokens))
        if code := self._library.llama_decode(self._context, batch):
            raise SystemExit(f"llama_decode returns {code}")
        logits = self._library.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (1, self._job.vocab)).copy()


def reader(job: Job) -> Reader:
    return Context(job)


if __name__ == "__main__":
    main(reader, ("gguf",))

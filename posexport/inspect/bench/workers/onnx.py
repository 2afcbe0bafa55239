"""A graph on ONNX Runtime, its cache bound where it lies. Takes every exporter's names of inputs and outputs.

``options``: ``shared`` binds keys and values of past and new tokens to one buffer with room for all; ``spinning`` lets
idle threads wait busily.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from posexport.base.targets.dtypes import BY_ORT_TYPE
from posexport.base.targets.providers import HOST, provider_named
from posexport.inspect.bench.workers.job import Job, Reader, main
from posexport.run.ort_values import run_bound
from posexport.run.providers import make_session

#: element types of a KV cache
_CACHES = ("tensor(float)", "tensor(float16)")


class Graph:
    """A session and what it holds between calls."""

    def __init__(self, job: Job) -> None:
        spinning = bool(job.options.get("spinning"))
        # as `posexport.load` opens bundles; other exporters' graphs gain as much by it
        self._session = make_session(
            Path(job.model),
            provider=job.provider,
            threads=job.threads,
            spinning=spinning,
            denormals=False,
            provider_options=job.provider_options,
        )
        self._job, self._shared = job, bool(job.options.get("shared"))
        self._device = provider_named(job.provider).device
        inputs = self._session.get_inputs()
        self._cache = [arg for arg in inputs if arg.type in _CACHES and re.search("past|cache", arg.name)]
        self._others = [arg for arg in inputs if arg not in self._cache]
        first, *rest = (arg.name for arg in self._session.get_outputs())
        # a graph with a cache gives the new one in the old one's order; other graphs' further outputs are left out
        self._outputs = [first, *rest[: len(self._cache)]]
        self._drawn: dict[tuple[str, int], NDArray[np.float32]] = {}
        self._rng = np.random.default_rng(1)
        #: bytes of inputs and outputs of the last call; None with a cache, which calls share
        self.held: int | None = None
        self.clear()

    def clear(self) -> None:
        self._read = 0
        self._held: dict[str, OrtValue] = {}
        for arg in self._cache:
            # batch, heads, tokens, head size; or fixed sizes after the batch
            free = (self._job.batch, 0, self._job.room if self._shared else 0, self._job.options.get("head_size", 0))
            # transformers.exporters writes fixed sizes as text
            shape = [int(size) if str(size).isdigit() else free[axis] for axis, size in enumerate(arg.shape)]
            self._held[arg.name] = OrtValue.ortvalue_from_numpy(
                np.zeros(shape, BY_ORT_TYPE[arg.type].name), self._device, 0
            )

    def read(self, ids: NDArray[np.int64]) -> "Answer":
        fed = {arg.name: np.ascontiguousarray(self._fed(arg, ids)) for arg in self._others}
        logits, *present = self._outputs
        targets = self._held.values() if self._shared else [self._device] * len(present)
        outputs = {logits: HOST, **dict(zip(present, targets, strict=True))}
        answer, *cache = run_bound(self._session, fed, self._held, outputs)
        if not self._shared:  # else it holds the arrays that lie under the buffers
            self._held = dict(zip(self._held, cache, strict=True))
        self._read += ids.shape[1]
        if not self._cache:
            self.held = sum(array.nbytes for array in fed.values()) + answer.tensor_size_in_bytes()
        return Answer(answer, last=bool(self._cache))

    def _fed(self, arg: Any, ids: NDArray[np.int64]) -> NDArray[Any]:
        """The array of an input that is no cache, by its name and type."""
        dtype, total = np.dtype(BY_ORT_TYPE[arg.type].name), self._read + ids.shape[1]
        if len(arg.shape) == 1 and dtype == np.int64 and self._cache:  # row by row: where to write, tokens in all
            return np.full(len(ids), self._read if "write" in arg.name else total, dtype)
        if "mask" in arg.name:
            return np.ones((len(ids), total), dtype) if self._cache else self._job.mask().astype(dtype)
        if "type" in arg.name:
            return np.zeros(ids.shape, dtype)
        if "position" in arg.name:
            return np.tile(np.arange(self._read, total, dtype=dtype), (len(ids), 1))
        if dtype == np.float32:
            shape = [size if isinstance(size, int) else ids.shape[1] for size in arg.shape[1:]]
            drawn = (arg.name, ids.shape[1])
            if drawn not in self._drawn:  # once: drawing takes longer than attention
                self._drawn[drawn] = self._rng.standard_normal((len(ids), *shape), dtype=np.float32)
            return self._drawn[drawn]
        return ids.astype(dtype)


class Answer:
    """An output where ONNX Runtime left it, [B, T, N] or with ``last`` the last token's [B, N], until it is copied."""

    def __init__(self, value: OrtValue, *, last: bool) -> None:
        self._value, self._last = value, last

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = np.asarray(self._value.numpy(), dtype)
        return array[:, -1] if self._last else array


def reader(job: Job) -> Reader:
    return Graph(job)


if __name__ == "__main__":
    main(reader, ("onnxruntime-gpu", "onnxruntime", "numpy"))

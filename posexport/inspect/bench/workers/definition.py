"""Our definition in PyTorch, as it is written or compiled.

``options``: ``settings``, the ``--set`` pairs; ``task``; ``compiled``; ``dtype`` of the weights, by default float32.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posexport.base.system.threads import allowed_threads
from posexport.inspect.bench.workers.job import Job, Reader, main
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions


class Definition:
    """The module, and the keys and values of what it has read."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or min(torch.get_num_threads(), allowed_threads()))
        options = LoadOptions(task=job.options.get("task"), settings=tuple(job.options.get("settings", ())))
        source = load_source(job.model, options)
        self._module: Any = source.module.to(getattr(torch, job.options.get("dtype", "float32")))
        self._mask = torch.from_numpy(job.mask())
        if job.options.get("compiled"):
            self._module = torch.compile(self._module, dynamic=True)
        self._inputs, self._cached = source.inputs, source.limits.kv_cache
        self.clear()

    def clear(self) -> None:
        self._read, self._past = 0, list[torch.Tensor]()

    @torch.inference_mode()
    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        self._read += ids.shape[1]
        arrays = {
            "tokens": lambda: torch.from_numpy(ids),
            "mask": lambda: torch.ones(len(ids), self._read, dtype=torch.int64) if self._cached else self._mask,
            "types": lambda: torch.zeros(ids.shape, dtype=torch.int64),
        }
        fed = {spec.name: arrays[spec.role]() for spec in self._inputs if spec.role in arrays}
        if not self._cached:
            self._read = 0
            return np.asarray(self._module(**fed)[0].float())
        logits, *self._past = self._module(**fed, **({"past_key_values": self._past} if self._past else {}))
        return np.asarray(logits[:, -1].float())


def reader(job: Job) -> Reader:
    return Definition(job)


if __name__ == "__main__":
    main(reader, ("torch",))

"""A checkpoint in transformers' own PyTorch code, with its DynamicCache. Runs where transformers is installed.

``options``: ``dtype`` is that of the weights, by default float32; ``compiled`` compiles the timed calls by
torch.compile, with a StaticCache.
"""

from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from posexport.base.system.threads import allowed_threads
from posexport.inspect.bench.workers.job import Job, Reader, main


class Checkpoint:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or min(torch.get_num_threads(), allowed_threads()))
        config = transformers.AutoConfig.from_pretrained(job.model)
        cls = getattr(transformers, config.architectures[0])
        self._module = cls.from_pretrained(job.model, dtype=getattr(torch, job.options.get("dtype", "float32"))).eval()
        self._causal = config.architectures[0].endswith("ForCausalLM")
        self._config, self._job, self._compiled = config, job, None
        if job.options.get("compiled"):
            self._compiled = torch.compile(self._module)
            self._cache = transformers.StaticCache(config, max_cache_len=job.room)
        self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        if self._compiled is None:
            self._cache = transformers.DynamicCache(config=self._config)
        else:
            self._cache.reset()

    @torch.inference_mode()
    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        if not self._causal:
            mask = torch.from_numpy(self._job.mask()) if self._job.padding else None
            return np.asarray(self._module(torch.from_numpy(ids), attention_mask=mask)[0].float())
        is_timed = ids.shape[1] == self._job.new
        call = self._compiled if self._compiled is not None and is_timed else self._module
        out = call(torch.from_numpy(ids), past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        return np.asarray(out.logits[:, -1].float())


def reader(job: Job) -> Reader:
    return Checkpoint(job)


if __name__ == "__main__":
    main(reader, ("transformers", "torch"))

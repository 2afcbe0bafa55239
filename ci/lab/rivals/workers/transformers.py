"""A checkpoint in transformers' own PyTorch code, with its DynamicCache. Runs where transformers is installed."""

from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from posexport.tools.bench.workers.job import Job, Reader, main


class Checkpoint:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or torch.get_num_threads())
        config = transformers.AutoConfig.from_pretrained(job.model)
        cls = getattr(transformers, config.architectures[0])
        self._module = cls.from_pretrained(job.model, dtype=torch.float32).eval()
        self._causal = config.architectures[0].endswith("ForCausalLM")
        self.clear()

    def clear(self) -> None:
        self._cache = transformers.DynamicCache()

    @torch.inference_mode()
    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        if not self._causal:
            return np.asarray(self._module(torch.from_numpy(ids))[0])
        out = self._module(torch.from_numpy(ids), past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        return np.asarray(out.logits[:, -1])


def reader(job: Job) -> Reader:
    return Checkpoint(job)


if __name__ == "__main__":
    main(reader, ("transformers", "torch"))

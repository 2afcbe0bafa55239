"""Reading what a step reads, and nothing else: no step can be faster than memory gives its weights and its cache.

``options``: ``numbers``, float32 ones of the weights; ``per_token``, those that a cache holds of a token.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posexport.bench.workers.job import Job, Reader, main


class Reading:
    """The sum of as many numbers, by all threads."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or torch.get_num_threads())
        cached = job.options["per_token"] * job.past
        self._numbers = torch.full((job.options["numbers"] + cached,), 1e-3)

    def clear(self) -> None:
        """Nothing is kept."""

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        return np.full((len(ids), 1), self._numbers.sum())


def reader(job: Job) -> Reader:
    return Reading(job)


if __name__ == "__main__":
    main(reader, ("torch",))

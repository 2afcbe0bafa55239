"""Reading what a step reads, and nothing else: no step can be faster than memory gives its weights and its cache."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posexport.inspect.bench.workers.job import Job, Reader, main


class Reading:
    """The sum of as many numbers as a checkpoint's weights (of the embeddings a step reads a row) and cache, once."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads or torch.get_num_threads())
        config = json.loads(Path(job.model, "config.json").read_text())
        layers = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"]).count("full_attention")
        per_token = 2 * layers * config["num_key_value_heads"] * config["head_dim"]
        self._numbers = torch.full((_stored(Path(job.model, "model.safetensors")) + per_token * job.past,), 1e-3)

    def clear(self) -> None:
        """Nothing is kept."""

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        return np.full((len(ids), 1), self._numbers.sum())


def _stored(path: Path) -> int:
    """Numbers of all tensors but the embeddings, of the file's header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__" and "embed_tokens" not in name]
    return sum(int(np.prod(shape)) for shape in shapes)


def reader(job: Job) -> Reader:
    return Reading(job)


if __name__ == "__main__":
    main(reader, ("torch",))

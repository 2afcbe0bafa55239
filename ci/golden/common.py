"""What the makers of golden checkpoints share: weights at which everything matters, points, and how a model is run.

posexport is not imported by any of them. One directory per checkpoint:

    config.json, model.safetensors   written by ``save_pretrained``
    expected.safetensors             for every point (``none-17``, ``left-17`` ...) the inputs as uint8 (real numbers as
                                     float32) and the outputs as float32: ``<point>.input_ids``, ``<point>.logits`` ...

The outputs are those of a float64 run, rounded once. A checkpoint whose positions do not matter is refused. The same
seeds give the same bytes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers

try:
    from transformers.initialization import no_init_weights as no_init_weights
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights as no_init_weights

FIVE = int(transformers.__version__.partition(".")[0]) >= 5
#: name of a checkpoint to what writes it into a directory
Checkpoints = dict[str, Callable[[Path], None]]


def randomise(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Weights at which positions, biases and normalisations all matter."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # a formula's numbers
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        scale = name.endswith("weight") and parameter.dim() == 1
        parameter.data.copy_(1 + 0.3 * noise if scale else 0.4 * noise)


def points(longest: int) -> dict[str, tuple[int, list[int], str]]:
    """Name to length, real tokens per row, side of the padding."""
    table = {f"none-{length}": (length, [length], "right") for length in (1, 2, 17, longest)}
    table["right-17"] = (17, [17, 9, 1], "right")
    table["left-17"] = (17, [17, 9, 1], "left")
    table[f"right-{longest}"] = (longest, [longest, 11], "right")
    return table


def run(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        out = model(**given)
        base = model.base_model(**given) if model.base_model is not model else out
    found = {"last_hidden_state": base.last_hidden_state}
    found |= {name: out[name] for name in ("logits", "start_logits", "end_logits") if name in out}
    return found

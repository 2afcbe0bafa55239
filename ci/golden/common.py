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


def drawn_rows(
    rng: np.random.Generator, rows: list[int], side: str, vocab: int, padding: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids from 3 on and their mask: so many real tokens in every row, padding on the ``side``."""
    length = max(rows)
    ids = rng.integers(3, vocab, (len(rows), length))
    mask = np.zeros_like(ids)
    for row, real in enumerate(rows):
        mask[row, length - real if side == "left" else 0 : length if side == "left" else real] = 1
    ids[mask == 0] = padding
    return torch.from_numpy(ids), torch.from_numpy(mask)


def outputs(
    point: str, out: dict[str, torch.Tensor], keys: list[str], mask: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """The outputs ``keys`` of a point as they are stored, zero at tokens that ``mask`` leaves out."""
    stored = {}
    for key in keys:
        value = out[key]
        if mask is not None and key in ("logits", "last_hidden_state"):
            value = value * mask[..., None]
        stored[f"{point}.{key}"] = value.float().contiguous()
    return stored


def run(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        out = model(**given)
        base = model.base_model(**given) if model.base_model is not model else out
    found = {"last_hidden_state": base.last_hidden_state}
    found |= {name: out[name] for name in ("logits", "start_logits", "end_logits") if name in out}
    return found

"""Inputs that say how many tokens of every row are real: ``feature_lengths``, ``x_lens``."""

from collections.abc import Mapping

import torch
from torch import Tensor


def counts_rows(name: str, tensor: Tensor) -> bool:
    """Whether an input seems to hold the length of every row: ``feature_lengths``."""
    return tensor.dim() == 1 and not tensor.is_floating_point() and "len" in name.lower()


def counts_tokens(name: str, tensor: Tensor, size: int) -> bool:
    """Whether an input says how many tokens of every row are real, in a sequence of ``size``."""
    return counts_rows(name, tensor) and int(tensor.max()) == size


def followed(resized: Mapping[str, Tensor], example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``resized`` inputs whose lengths are those of the sequence that they count: its whole rows are whole again."""
    followed = dict(resized)
    for name, lengths in resized.items():
        if not counts_rows(name, example[name]):
            continue
        whole = int(example[name].max())
        sizes = [
            (before, after)
            for other, tensor in example.items()
            for before, after in zip(tensor.shape, resized[other].shape, strict=True)
        ]
        new = next((after for before, after in sizes if before == whole != after), whole)
        followed[name] = torch.where(lengths == whole, new, lengths.clamp(max=new))
    return followed

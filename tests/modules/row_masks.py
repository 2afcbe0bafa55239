"""Masks from row lengths in a file of their own, as speech packages have them beside their layers."""

from typing import Any

import torch
from torch import Tensor


def padding_of(lengths: Any) -> Tensor:
    """True at padding, as ESPnet's ``make_pad_mask`` writes it."""
    if not isinstance(lengths, list):
        lengths = lengths.tolist()
    rows, longest = int(len(lengths)), int(max(lengths))  # noqa: RUF046 (as packages write it)
    index = torch.arange(0, longest, dtype=torch.int64).unsqueeze(0).expand(rows, longest)
    return index >= index.new(lengths).unsqueeze(-1)


def mask_of(lengths: Tensor, longest: int) -> Tensor:
    """True at tokens, as speechbrain's ``length_to_mask`` writes it."""
    return torch.arange(longest, dtype=lengths.dtype).expand(len(lengths), longest) < lengths.unsqueeze(1)

"""Minus infinity as an output: a score of what is left out, such as a word that a text does not have."""

import torch
from torch import Tensor


def has_values(x: Tensor) -> bool:
    """Whether every element is a finite number, or minus infinity."""
    return not x.is_floating_point() or bool((torch.isfinite(x) | torch.isneginf(x)).all())

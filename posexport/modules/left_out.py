"""Minus infinity as an output: the score of a masked class, for example of a padded word of a text."""

import torch
from torch import Tensor


def has_values(x: Tensor) -> bool:
    """Whether every element is a finite number, or minus infinity."""
    return not x.is_floating_point() or bool((torch.isfinite(x) | torch.isneginf(x)).all())

"""Probabilities of logits, in NumPy with the order of operations of transformers' pipelines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def softmax(x: Floats, axis: int = -1) -> Floats:
    """Along ``axis``, shifted by the largest logit."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    out: Floats = shifted / shifted.sum(axis=axis, keepdims=True)
    return out


def sigmoid(x: Floats) -> Floats:
    """``1 / (1 + exp(-x))``, without an overflow for large negative logits."""
    small = np.exp(-np.abs(x))
    out: Floats = np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)
    return out

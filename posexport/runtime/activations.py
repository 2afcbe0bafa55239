"""Activations of torch.nn that make scores of logits, on NumPy arrays, by the names of their classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

Floats = NDArray[np.floating]
#: beyond it Softplus is its argument, as in PyTorch
_SOFTPLUS_THRESHOLD = 20


def sigmoid(x: Floats) -> Floats:
    """Without an overflow for large negative ones."""
    small = np.exp(-np.abs(x))
    out: Floats = np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)
    return out


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    out: Floats = raised / raised.sum(-1, keepdims=True)
    return out


def softplus(x: Floats) -> Floats:
    out: Floats = np.where(x > _SOFTPLUS_THRESHOLD, x, np.logaddexp(0, x)).astype(x.dtype)
    return out


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Sigmoid": sigmoid,
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: x * sigmoid(x),
    "Softplus": softplus,
    "LogSigmoid": lambda x: -softplus(-x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softmax": softmax,
}


def activation(named: str | Callable[[Any], Any]) -> Callable[[Floats], Floats]:
    """An activation by its class of torch.nn (``Sigmoid``, ``torch.nn.Sigmoid``), or of a module of torch.nn.

    Any other function is called with the array of logits. PosexportError for a class that is not computed here.
    """
    kind = type(named)
    if not isinstance(named, str):
        if not kind.__module__.startswith("torch."):
            return named
        named = kind.__name__
    name = named.rpartition(".")[2]
    if name not in ACTIVATIONS or (name != named and not named.startswith("torch.nn.")):
        raise PosexportError(
            f"scores that are {named!r:.80} of logits are not computed here (known: {', '.join(ACTIVATIONS)}); use "
            "activation_fn='Identity' and apply it yourself"
        )
    return ACTIVATIONS[name]

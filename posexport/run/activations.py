"""Activation functions of torch.nn on NumPy arrays, by class name; they turn logits into scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

Floats = NDArray[np.floating]
#: above this threshold Softplus is linear, as in PyTorch
_SOFTPLUS_THRESHOLD = 20


def sigmoid(x: Floats) -> Floats:
    """The logistic function, without overflow for large negative values."""
    small = np.exp(-np.abs(x))
    out: Floats = np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)
    return out


def softmax(x: Floats, axis: int = -1) -> Floats:
    """Softmax along ``axis``, without overflow for large values."""
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    out: Floats = raised / raised.sum(axis=axis, keepdims=True)
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
    """The function of a torch.nn class (``Sigmoid``, ``torch.nn.Sigmoid``) or of a torch.nn module.

    Any other function is returned as it is. Raises PosexportError for a class without an implementation here.
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

"""Activation functions by the names that Hugging Face configurations use."""

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from posexport.errors import PosexportError

_TANH_GELU = functools.partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_fast": _TANH_GELU,
    "gelu_new": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function called ``name``; PosexportError names the known ones."""
    if name not in ACTIVATIONS:
        raise PosexportError(f"unknown activation {name!r}; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]

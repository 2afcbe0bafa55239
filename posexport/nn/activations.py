"""Activation functions by the names that Hugging Face configurations use."""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.errors import PosexportError


def _laplace(x: Tensor) -> Tensor:
    """Ma et al., "Mega" (arXiv:2209.10655), section 3.2: the error function where it is nearest to a squared ReLU."""
    return 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2))))


def _identity(x: Tensor) -> Tensor:
    return x


_TANH_GELU = functools.partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_10": lambda x: F.gelu(x).clamp(-10, 10),
    "gelu_accurate": _TANH_GELU,
    "gelu_python": F.gelu,
    "gelu_fast": _TANH_GELU,
    "gelu_new": _TANH_GELU,
    "gelu_python_tanh": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "hardswish": F.hardswish,
    "laplace": _laplace,
    "leaky_relu": F.leaky_relu,
    "linear": _identity,
    "mish": F.mish,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
    "swish": F.silu,
    "tanh": F.tanh,
}


#: transformers' names of activations with parameters
_WITH_WEIGHTS = ("prelu", "xielu")


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function called ``name``; PosexportError names the known ones."""
    if name in _WITH_WEIGHTS:
        raise PosexportError(f"activation {name!r} has weights of its own, which are not read")
    if name not in ACTIVATIONS:
        raise PosexportError(f"unknown activation {name!r}; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]

"""The feed-forward sublayer, with Hugging Face's activations; and DeBERTa 2's convolution over tokens.

He et al., "DeBERTa" (arXiv:2006.03654), the code released with version 2: of the embeddings, after the first layer.

Shape letters: B batch, T tokens, C model size.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.nn.config import Config, named
from posexport.nn.norms import NormConfig, normalisation


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


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """``size``: channels between the projections; 0: the layer has no feed-forward."""

    size: int = named("feedforward", 97)
    activation: str = "gelu"
    #: the activation is multiplied by a second linear projection of the same input
    gated: bool = False
    bias: bool = named("feedforward_bias", True)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise PosexportError(f"feedforward must be at least 0 (no feed-forward), got {self.size}")


class FeedForward(nn.Module):
    """``outer(activation(inner(x)) * gate(x))``; [B, T, C] to [B, T, C].

    The gated form follows Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202), equation 6.
    """

    def __init__(self, config: FeedForwardConfig, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, config.size, bias=config.bias)
        self.gate = nn.Linear(hidden, config.size, bias=config.bias) if config.gated else None
        self.activation = activation(config.activation)
        self.outer = nn.Linear(config.size, hidden, bias=config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        active = self.activation(self.inner(x_BTC))
        out: Tensor = self.outer(active if self.gate is None else active * self.gate(x_BTC))
        return out


class TokenConvolution(nn.Module):
    """``norm(y + act(conv(x)))``; tokens that the mask leaves out are zeros to it."""

    def __init__(self, hidden: int, norm: NormConfig, *, kernel: int, groups: int, activation_name: str) -> None:
        super().__init__()
        if kernel % 2 == 0 or hidden % groups:
            raise PosexportError(
                f"a convolution over tokens needs an odd kernel and groups that divide {hidden} channels, got kernel = "
                f"{kernel}, groups = {groups}"
            )
        self.conv = nn.Conv1d(hidden, hidden, kernel, padding=kernel // 2, groups=groups)
        self.activation = activation(activation_name)
        self.norm = normalisation(norm, hidden)

    def forward(self, x_BTC: Tensor, y_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
        """``x``: what the layer read, ``y``: what it gave."""
        if mask_BT is not None:
            x_BTC = x_BTC * (mask_BT != 0)[:, :, None].to(x_BTC.dtype)
        summed: Tensor = self.norm(y_BTC + self.activation(self.conv(x_BTC.mT).mT))
        return summed

"""Normalisation of a token's channels, and the sum around a sublayer with the normalisations before or after it."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Fraction, Positive
from posexport.errors import PosexportError
from posexport.nn.config import Config, named


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """Which normalisation a model has."""

    #: ``rms`` divides by the root of the mean square, and neither subtracts nor adds
    kind: Literal["layer", "rms"] = named("norm_kind", "layer")
    eps: Fraction = 1e-12
    bias: bool = named("norm_bias", True)
    #: learned factors (and biases); ``layer`` only
    weight: bool = named("norm_weight", True)
    #: is added to the weights of ``rms``, which are stored as their difference from it (Gemma: from 1)
    offset: float = named("norm_offset", 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight and self.kind != "layer":
            raise PosexportError(f"norm_weight=false is for norm_kind=layer, got norm_kind={self.kind}")


def normalisation(config: NormConfig, width: int) -> "nn.LayerNorm | RMSNorm":
    """The normalisation of vectors of size ``width``."""
    if config.kind == "rms":
        return RMSNorm(width, eps=config.eps, offset=config.offset)
    return nn.LayerNorm(width, eps=config.eps, elementwise_affine=config.weight, bias=config.bias)


class RMSNorm(nn.Module):
    """Divides by the root of the mean square of the channels and scales each; nothing is subtracted or added.

    Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467), equation 4; T5's and Llama's. In
    float32 or wider: squares of half precision overflow from 256 on. The cast down is last.
    """

    def __init__(self, width: int, *, eps: float, offset: float = 0.0) -> None:
        """``offset`` is added to the weights: Gemma's are what they differ by from 1."""
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape that ends in ``width`` channels."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # divided, as ONNX Runtime fuses it to one kernel, which it does not with a reciprocal
        unit = wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        weight = self.weight.to(wide.dtype) + self.offset if self.offset else self.weight
        return (unit * weight).to(x.dtype)


class LayerNormOfHeads(nn.Module):
    """Layer normalisation of every head by separate factors, without biases (StableLM 2)."""

    def __init__(self, heads: int, size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weights = nn.ParameterList(torch.ones(size) for _ in range(heads))

    def forward(self, x_BHTD: Tensor) -> Tensor:
        """``x_BHTD``: [batch, heads, tokens, head size]."""
        weight_H1D = torch.stack(tuple(self.weights))[:, None]
        return F.layer_norm(x_BHTD, x_BHTD.shape[-1:], eps=self.eps) * weight_H1D


@dataclass(frozen=True, kw_only=True)
class ResidualConfig(Config):
    """How a sublayer's input and output are normalised and added."""

    #: where a sublayer's normalisation is: after the sum, before the sublayer; ``none`` leaves it out
    norm: Literal["post", "pre", "none"] = "post"
    #: a second normalisation of every sublayer's output, before the sum (Gemma 2, arXiv:2408.00118)
    output_norm: bool = named("answer_norm", False)
    #: the sum around every sublayer
    add: bool = named("residual", True)
    #: every channel of a sublayer's output is multiplied by a learned number before the sum (Touvron et al.,
    #: arXiv:2103.17239)
    layer_scale: bool = False
    #: every sublayer's output is multiplied by this before the sum (Granite)
    scale: Positive = named("residual_scale", 1.0)


class Residual(nn.Module):
    """Normalisation before (``pre``) or after (``post``) a sublayer, and the sum around it; either may be off."""

    def __init__(self, config: ResidualConfig, norm: NormConfig, hidden: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.add = config.add
        self.norm = None if config.norm == "none" else normalisation(norm, hidden)
        self.answer_norm = normalisation(norm, hidden) if config.output_norm else None
        self.layer_scale = nn.Parameter(torch.ones(hidden)) if config.layer_scale else None
        self.scale = config.scale

    def before(self, x_BTC: Tensor) -> Tensor:
        """Returns the sublayer's input."""
        return x_BTC if self.norm is None or not self.pre else self.norm(x_BTC)

    def after(self, x_BTC: Tensor, y_BTC: Tensor) -> Tensor:
        """The sum of the stream ``x`` and the sublayer's output ``y``, normalised."""
        if self.answer_norm is not None:
            y_BTC = self.answer_norm(y_BTC)
        if self.layer_scale is not None:
            y_BTC = self.layer_scale * y_BTC
        if self.scale != 1:
            y_BTC = y_BTC * self.scale
        sum_BTC = x_BTC + y_BTC if self.add else y_BTC
        return sum_BTC if self.norm is None or self.pre else self.norm(sum_BTC)

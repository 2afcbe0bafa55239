"""Normalisation of a token's channels."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.nn.config import Config, named
from posexport.options.values import Fraction


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

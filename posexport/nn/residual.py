"""The sum around a sublayer, with the normalisations before or after it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.nn.config import Config, named
from posexport.nn.norms import NormConfig, normalisation
from posexport.options.values import Positive


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

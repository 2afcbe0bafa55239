"""The feed-forward sublayer: two linear projections with an activation between, which a third may gate."""

from dataclasses import dataclass

from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.nn.activations import activation
from posexport.nn.config import Config, named


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

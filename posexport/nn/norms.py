"""Normalisation of a token's channels."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Divides by the root of the mean square of the channels and scales each; nothing is subtracted or added.

    Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467), equation 4; T5's and Llama's. In
    float32 or wider: squares of half precision overflow from 256 on. The cast down is last.
    """

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape that ends in ``width`` channels."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * size * self.weight).to(x.dtype)

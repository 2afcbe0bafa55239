"""Tokens of a row by their indices."""

import torch
from torch import Tensor


def tokens_at(x_BTC: Tensor, index_BN: Tensor) -> Tensor:
    """The states of the tokens ``index_BN``, [B, N, C]; zeros where an index is negative."""
    batch, length, channels = x_BTC.shape
    first_B1 = torch.arange(batch, device=x_BTC.device)[:, None] * length
    flat = (index_BN.clamp(min=0) + first_B1).flatten()
    picked_BNC = x_BTC.reshape(-1, channels).index_select(0, flat).unflatten(0, (batch, index_BN.shape[1]))  # type: ignore[no-untyped-call]
    return torch.where((index_BN >= 0)[..., None], picked_BNC, 0.0)

"""A small network of the logarithms of the two-dimensional offset inside a window, added to the scores.

Liu et al., "Swin Transformer V2: Scaling Up Capacity and Resolution" (arXiv:2111.09883), section 3.3, equations 3 and
4; with the released code offsets are first divided by the largest of the windows it was trained with and multiplied by
8, logarithms are to base 8, and a bias is 16 sigmoid(network). The section's cosines are the definition's.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Count, Size
from posexport.encodings.encoding import Array, register
from posexport.encodings.tables import WindowBias
from posexport.errors import PosexportError


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BTA: Array,
    kpos_BSA: Array,
    *,
    params: Mapping[str, Array],
    window: int = 4,
    pretrained_window: int = 0,
    heads: int,
    width: int = 512,
) -> Array:
    """One key at a time: log8(1 + 8 |offset| / largest) with the offset's sign, both layers, the logistic function."""
    largest = max((pretrained_window or window) - 1, 1)
    first, bias, second = params["first.weight"], params["first.bias"], params["second.weight"]
    assert first.shape == (width, 2)
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    for j, key_A in enumerate(kpos_BSA[0]):
        share_TA = (qpos_BTA[0] - key_A) / largest
        log_TA = np.where(share_TA < 0, -1, 1) * np.log1p(8 * np.abs(share_TA)) / np.log(8)
        unit_UT = np.tensordot(first, log_TA, (1, 1)) + bias[:, None]
        out[0, :, :, j] = 16 / (1 + np.exp(-(second @ (unit_UT * (unit_UT > 0)))))
    return out


@register(
    "swinv2",
    cases=[
        {"window": 17, "heads": 3, "pretrained_window": 6, "width": 7},
        {"window": 8, "heads": 5, "width": 9},
        {"window": 3, "heads": 2, "pretrained_window": 5, "width": 512},
        {"window": 1, "heads": 5, "width": 4},
    ],
    source="Liu et al. 2022, arXiv:2111.09883, equations 3 and 4",
    scores=oracle,
)
class SwinV2(WindowBias):
    """Adds ``16 sigmoid(f(log offset))`` of every head to the scores, f a network of the offset inside a window.

    f has ``width`` hidden units and separate weights in every layer; it is evaluated once for every offset, in
    float32 or wider. ``pretrained_window``: the divisor of offsets is this window's largest (0: of ``window``), so
    that a model can be tuned for larger windows. Not scaled. A definition cuts images of any size into these windows.
    """

    cosine_scores = True

    def __init__(self, *, window: int = 4, heads: int, pretrained_window: Count = 0, width: Size = 512) -> None:
        super().__init__(window=window, heads=heads, pretrained_window=pretrained_window, width=width)
        if pretrained_window == 1:
            raise PosexportError(f"{self.name}: pretrained_window must be 0 (none) or from 2 on, got 1")
        self.largest = (pretrained_window or max(window, 2)) - 1
        self.first = nn.Linear(2, width)
        self.second = nn.Linear(width, heads, bias=False)

    def by_offset(self) -> Tensor:
        parameters = (self.first.weight, self.first.bias, self.second.weight)
        weight, bias, second = (p.to(torch.promote_types(p.dtype, torch.float32)) for p in parameters)
        log_WA = self.log_offsets(weight.dtype).to(weight.device).flatten(0, 1)
        return 16 * F.linear(F.relu(F.linear(log_WA, weight, bias)), second).sigmoid()

    def log_offsets(self, dtype: torch.dtype) -> Tensor:
        """The network's input, [2 window - 1, 2 window - 1, 2]: signed logarithms to base 8 of row and column."""
        share_W = torch.arange(1 - self.window, self.window).to(dtype) * 8 / self.largest
        log_W = share_W.sign() * torch.log2(share_W.abs() + 1) / 3
        side = len(log_W)
        return torch.stack([log_W[:, None].expand(side, side), log_W[None, :].expand(side, side)], -1)

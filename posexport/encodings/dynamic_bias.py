"""A small network of the signed distance, added to the scores.

Wang et al., "CrossFormer" (arXiv:2108.00154), section 3.3, in the one-dimensional form of x-transformers
(``DynamicPositionBias``): SiLU between linear layers, one network for all layers.
"""

import itertools
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.distance_scores import DISTANCE_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    width: int = 16,
    depth: int = 2,
    log_distance: bool = True,
    layer_norm: bool = False,
) -> Array:
    """The network for each pair of tokens by itself: x = i - j, then x = silu(norm(W x + b)) ``depth`` times."""
    out = np.zeros((1, heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    gap_TS = np.subtract.outer(qpos_BT[0], kpos_BS[0]).astype(np.float64)
    x_TSU = (np.copysign(np.log1p(np.abs(gap_TS)), gap_TS) if log_distance else gap_TS)[..., None]
    for layer in range(depth):
        x_TSU = np.einsum("tsu,vu->tsv", x_TSU, params[f"maps.{layer}.weight"]) + params[f"maps.{layer}.bias"]
        assert x_TSU.shape[-1] == width
        if layer_norm:
            x_TSU = (x_TSU - x_TSU.mean(-1, keepdims=True)) / np.sqrt(x_TSU.var(-1, keepdims=True) + 1e-5)
            x_TSU = x_TSU * params[f"norms.{layer}.weight"] + params[f"norms.{layer}.bias"]
        x_TSU = x_TSU / (1 + np.exp(-x_TSU))
    last = params[f"maps.{depth}.weight"], params[f"maps.{depth}.bias"]
    out[0] = np.moveaxis(x_TSU @ last[0].T + last[1], -1, 0)
    return out


@register(
    "dynamic-bias",
    cases=[
        {"heads": 5},
        {"heads": 3, "width": 7, "depth": 1},
        {"heads": 2, "width": 9, "depth": 3, "layer_norm": True},
        {"heads": 4, "width": 6, "depth": 2, "log_distance": False, "layer_norm": True},
    ],
    source="Wang et al. 2022, arXiv:2108.00154, section 3.3; x-transformers",
    scores=oracle,
)
class DynamicBias(Encoding):
    """Adds ``f(i - j)`` of every head to the scores, not scaled, f being a small network; takes any length.

    f is evaluated once for every distance of a call, in float32 or wider. ``width`` and ``depth``: units and number of
    its hidden layers; ``layer_norm``: layer normalisation before each SiLU. ``log_distance``: f reads
    ``sign(x) log(1 + |x|)``, without which its values grow with the length; x-transformers leaves that to the user.
    """

    def __init__(
        self, *, heads: Size, width: Size = 16, depth: Size = 2, log_distance: bool = True, layer_norm: bool = False
    ) -> None:
        super().__init__(heads=heads, width=width, depth=depth, log_distance=log_distance, layer_norm=layer_norm)
        self.log_distance = log_distance
        sizes = [1, *[width] * depth, heads]
        self.maps = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth * layer_norm))

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The network's answer for every distance."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        lowest_1, distance_W = distances(queries, keys)
        x_WU = distance_W[:, None].to(wide)
        if self.log_distance:
            x_WU = x_WU.sign() * torch.log(1 + x_WU.abs())
        *hidden, last = self.maps
        for layer, linear in enumerate(hidden):
            x_WU = _mapped(x_WU, linear)
            if len(self.norms):
                norm = self.norms[layer]
                assert isinstance(norm, nn.LayerNorm)
                x_WU = F.layer_norm(x_WU, norm.normalized_shape, norm.weight.to(wide), norm.bias.to(wide), norm.eps)
            x_WU = F.silu(x_WU)
        by_distance_HW = _mapped(x_WU, last).mT
        return Term(DISTANCE_SCORES, (by_distance_HW.to(q_BHTD.dtype), lowest_1), queries, keys)


def _mapped(x_WU: Tensor, linear: nn.Module) -> Tensor:
    """A linear map in the precision of ``x``."""
    assert isinstance(linear, nn.Linear)
    return F.linear(x_WU, linear.weight.to(x_WU.dtype), linear.bias.to(x_WU.dtype))

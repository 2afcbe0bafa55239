"""A fixed penalty per head, linear in distance.

Press, Smith, Lewis, "Train Short, Test Long" (arXiv:2108.12409), section 3; head counts that are not a power of two as
in the authors' released code. BLOOM's variant: Le Scao et al. (arXiv:2211.05100), section 3.1.2, released code. Another
largest exponent than 8 is MPT's, a factor on all slopes Falcon's (released code of both). The variant ``falcon``, which
rounds to bfloat16, follows transformers 4.57.6 and 5.23.0 (``build_alibi_tensor``).
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Positive, Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.graph.ops.biases import slopes
from posexport.graph.ops.distance_scores import DISTANCE_SCORES
from posexport.graph.ops.position_product_scores import POSITION_PRODUCT_SCORES

Variant = Literal["symmetric", "causal", "bloom", "falcon"]


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    heads: int,
    variant: str = "symmetric",
    bias_max: float = 8.0,
    factor: float = 1.0,
) -> Array:
    """The geometric sequences of section 3, times the factor and what the variant counts."""
    assert not params

    def run(n: int) -> Array:
        return np.asarray(factor * np.exp2(-bias_max / n * np.arange(1, n + 1)))

    whole = 1 << (heads.bit_length() - 1)
    slope_H11 = np.concatenate([run(whole), run(2 * whole)[::2]])[:heads, None, None]
    shape = (len(q_BHTD), heads, q_BHTD.shape[2], k_BHSD.shape[2])
    if variant == "bloom":
        return np.broadcast_to(slope_H11 * kpos_BS[:, None, None, :], shape).astype(np.float64)
    if variant == "falcon":

        def eight_bits(x: Array) -> Array:
            mantissa, exponent = np.frexp(x)
            return np.asarray(np.ldexp(np.rint(mantissa * 256), exponent - 8))

        bias = eight_bits(eight_bits(slope_H11 / factor) * eight_bits(kpos_BS[:, None, None, :].astype(np.float64)))
        return np.broadcast_to(factor * bias, shape)
    forward_TS = kpos_BS[:1, None, None, :] - qpos_BT[:1, None, :, None]
    return np.asarray(slope_H11 * (forward_TS if variant == "causal" else -np.abs(forward_TS)), np.float64)


@register(
    "alibi",
    cases=[
        {"heads": 8},
        {"heads": 12},
        {"heads": 3},
        {"heads": 7, "variant": "causal"},
        {"heads": 5, "variant": "bloom"},
        {"heads": 6, "variant": "causal", "bias_max": 5.0},
        {"heads": 5, "factor": 0.3},
        {"heads": 3, "variant": "bloom", "bias_max": 11.0, "factor": 1.7},
        {"heads": 12, "variant": "falcon", "factor": 0.3},
    ],
    source="Press et al. 2022, arXiv:2108.12409, section 3",
    scores=oracle,
)
class Alibi(Encoding):
    """Adds ``-slope[h] * |i - j|`` to the scores, not scaled; nothing is learned; takes any length.

    ``variant``: ``symmetric``, the same to both sides (an encoder); ``causal``, ``slope * (j - i)``, which under a
    causal mask is the same, and without one would draw attention to what comes after; ``bloom``, ``slope * j``, which
    adds a constant to each row of the causal one and so equals it under softmax; ``falcon``, that with
    slope, position and product each rounded to bfloat16 (8 bits) before the factor, which beyond 256 tokens cannot tell
    neighbours apart, and is not equal to the causal one under softmax. The smallest slope of a power of two of heads is
    ``2^-bias_max``; all are multiplied by ``factor``. Positions stay int64 until the one product, in float32 or wider:
    float16 holds every integer only up to 2048.
    """

    def __init__(
        self, *, heads: Size, variant: Variant = "symmetric", bias_max: Positive = 8.0, factor: Positive = 1.0
    ) -> None:
        super().__init__(heads=heads, variant=variant, bias_max=bias_max, factor=factor)
        self.variant = variant
        self.factor = factor
        self.shift_invariant = variant != "falcon"
        exact = slopes(heads, bias_max)  # Python floats: module.half() cannot round them
        self.slopes = [factor * slope for slope in exact]
        self.rounded_slopes: list[float] = torch.tensor(exact, device="cpu").bfloat16().tolist()

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The slope of every head times the distance, or times the key's position."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        slope_H1 = torch.tensor(self.slopes, dtype=wide, device=q_BHTD.device)[:, None]
        if self.variant == "bloom":
            by_key_GHS = slope_H1 * keys.ids_BT[:, None, :].to(wide)
            return self._by_key(by_key_GHS, queries, keys, q_BHTD.dtype)
        if self.variant == "falcon":
            # a slope of 8 bits times a position of 8 bits is exact in float32: nothing is rounded twice
            rounded_H1 = torch.tensor(self.rounded_slopes, dtype=wide, device=q_BHTD.device)[:, None]
            by_key_GHS = rounded_H1 * _to_bfloat16(keys.ids_BT[:, None, :].to(wide))
            return self._by_key(_to_bfloat16(by_key_GHS) * self.factor, queries, keys, q_BHTD.dtype)
        lowest_1, distance_W = distances(queries, keys)
        counted_W = distance_W if self.variant == "causal" else distance_W.abs()
        by_distance_HW = -slope_H1 * counted_W.to(wide)
        return Term(DISTANCE_SCORES, (by_distance_HW.to(q_BHTD.dtype), lowest_1), queries, keys)

    def _by_key(self, by_key_GHS: Tensor, queries: Positions, keys: Positions, dtype: torch.dtype) -> Term:
        """The bias as a product of 1, at the queries, with the bias at the keys."""
        by_key_GHS1 = by_key_GHS[..., None].to(dtype)
        by_query_GHT1 = torch.ones_like(by_key_GHS1[:, :, :1])
        no_bias_H1 = torch.zeros(len(self.slopes), 1, dtype=dtype, device=by_key_GHS.device)
        first_2 = torch.cat([queries.slots_T[:1], keys.slots_T[:1]])
        tensors = (by_query_GHT1, by_key_GHS1, no_bias_H1, first_2[:1], first_2)
        return Term(POSITION_PRODUCT_SCORES, tensors, queries, keys)


def _to_bfloat16(x: Tensor) -> Tensor:
    """Rounded to bfloat16 (to nearest, ties to even), in the type that it had."""
    return x.to(torch.bfloat16).to(x.dtype)

"""Fixed sinusoids of the clipped distance, met by the queries and added to the values.

Wei et al., "NEZHA: Neural Contextualized Representation for Chinese Language Understanding" (arXiv:1909.00204), section
2.2, and transformers' code up to 4.57: Shaw's two terms with a table that is not learned. Row ``clip(j - i) + clip`` of
the table is the sinusoid of that row number, not of the signed distance. Not done: the released limit of
``max_position_embeddings``, which no weight depends on.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions
from posexport.encodings.waves import frequencies
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.clipped_values import CLIPPED_VALUES


def scores_oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    clip: int = 64,
    head_size: int,
) -> Array:
    """Channel by channel, for every pair: sin or cos of the row number over 10000^(2i / head_size)."""
    assert not params
    row_B1TS = np.clip(kpos_BS[:, None, None, :] - qpos_BT[:, None, :, None], -clip, clip) + clip
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for channel in range(head_size):
        wave = np.cos if channel % 2 else np.sin
        out += q_BHTD[..., channel, None] * wave(row_B1TS / 10000 ** (2 * (channel // 2) / head_size))
    return out


def values_oracle(
    probs_BHTS: Array, qpos_BT: Array, kpos_BS: Array, *, params: Mapping[str, Array], clip: int = 64, head_size: int
) -> Array:
    """Channel by channel: the probabilities' sum of the same waves."""
    assert not params
    row_B1TS = np.clip(kpos_BS[:, None, None, :] - qpos_BT[:, None, :, None], -clip, clip) + clip
    channels = []
    for channel in range(head_size):
        wave = np.cos if channel % 2 else np.sin
        channels.append((probs_BHTS * wave(row_B1TS / 10000 ** (2 * (channel // 2) / head_size))).sum(-1))
    return np.stack(channels, -1)


@register(
    "nezha",
    cases=[{"head_size": 4}, {"head_size": 7, "clip": 3}, {"head_size": 5, "clip": 270}, {"head_size": 3, "clip": 1}],
    source="Wei et al. 2019, arXiv:1909.00204, section 2.2",
    scores=scores_oracle,
    values=values_oracle,
)
class Nezha(Encoding):
    """Adds ``q_i . a[clip(j - i)]`` to the scores and ``sum_j p_ij a[clip(j - i)]`` to the context, a fixed sinusoids.

    ``a`` is [2 clip + 1, head_size], sines and cosines in turn, from distance (key minus query) ``-clip`` up; an odd
    ``head_size`` has one sine more. Takes any length; has no parameters.
    """

    def __init__(self, *, clip: Size = 64, head_size: Size) -> None:
        super().__init__(clip=clip, head_size=head_size)
        self.clip = clip
        # computed in float64 and rounded once, to the model's type
        row_R1 = torch.arange(2 * clip + 1, dtype=torch.float64)[:, None]
        angle_RF = row_R1 * torch.tensor(frequencies(head_size), dtype=torch.float64)
        waves_RD = torch.stack((angle_RF.sin(), angle_RF.cos()), -1).flatten(-2)[:, :head_size]
        self.rows: list[list[float]] = waves_RD.tolist()
        # holds no number: says which type and device the model has been moved to
        self.register_buffer("like", torch.empty(0), persistent=False)

    @property
    def boundaries(self) -> list[int]:
        """The longest input without a clipped distance."""
        return [self.clip + 1]

    def _table(self) -> Tensor:
        like = self.get_buffer("like")
        return torch.tensor(self.rows, dtype=like.dtype, device=like.device)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Returns the term ``q_i . a[clip(j - i)]``."""
        return Term(CLIPPED_SCORES, (self._table(),), queries, keys)

    def values(self, queries: Positions, keys: Positions) -> Term:
        """``sum_j p_ij a[clip(j - i)]``."""
        return Term(CLIPPED_VALUES, (self._table(),), queries, keys)

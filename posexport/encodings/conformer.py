"""Transformer-XL's relative position bias with interleaved sines and cosines, as in Conformers.

Gulati et al., "Conformer" (arXiv:2005.08100), section 2.1, as released in transformers' Wav2Vec2-Conformer
(``position_embeddings_type="relative"``) after ESPnet. The distance is positive where the key is to the left.
"""

from collections.abc import Mapping

import numpy as np

from posexport.encodings.encoding import Array, register
from posexport.encodings.transformer_xl import ProjectedSinusoids


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    hidden: int,
    heads: int,
    head_size: int,
) -> Array:
    """Every pair's sinusoid, projected, then the released code's matrices b, c and d; attention computes a."""
    distance_BTS1 = (qpos_BT[:, :, None] - kpos_BS[:, None, :])[..., None]
    turn_BTSF = distance_BTS1 * np.exp(np.arange(0, hidden, 2) * -(np.log(10000.0) / hidden))
    R_BTSC = np.zeros((*turn_BTSF.shape[:3], 2 * turn_BTSF.shape[3]))
    R_BTSC[..., 0::2], R_BTSC[..., 1::2] = np.sin(turn_BTSF), np.cos(turn_BTSF)
    p_BTSHD = (R_BTSC[..., :hidden] @ params["project.weight"].T).reshape(*R_BTSC.shape[:3], heads, head_size)
    biased_BHTD = q_BHTD + params["query_bias"][:, None]
    p_BTSHD = np.broadcast_to(p_BTSHD, (len(q_BHTD), *p_BTSHD.shape[1:]))
    matrix_c = np.einsum("hd,bhsd->bhs", params["key_bias"], k_BHSD)[:, :, None]
    matrix_bd = np.einsum("bhtd,btshd->bhts", biased_BHTD, p_BTSHD)
    scores_BHTS: Array = matrix_bd + matrix_c
    return scores_BHTS


@register(
    "conformer",
    cases=[{"hidden": 20, "heads": 5, "head_size": 4}, {"hidden": 7, "heads": 5, "head_size": 3}],
    source="Gulati et al. 2020, arXiv:2005.08100, section 2.1",
    scores=oracle,
)
class Conformer(ProjectedSinusoids):
    """Adds ``(q_i + v) . W R[i - j] + u . k_j`` to the scores, R sinusoids, sines and cosines in turn; any length.

    ``project.weight`` (W) is [heads head_size, hidden], without a bias; ``key_bias`` (u) and ``query_bias`` (v) are
    [heads, head_size]: the released code's ``pos_bias_u`` and ``pos_bias_v``.
    """

    layout = "interleaved"

    def __init__(self, *, hidden: int, heads: int, head_size: int) -> None:
        super().__init__(hidden=hidden, heads=heads, head_size=head_size)

"""Sinusoids of the distance, projected for every head, met by the queries; a bias for queries and one for keys.

Dai et al., "Transformer-XL" (arXiv:1901.02860), section 3.3, with the released code's layout (all sines, then all
cosines); in an encoder for both directions, as XLNet has it (Yang et al., arXiv:1906.08237). A memory is keys at
positions before the queries'. Not done: XLNet's term for segments; its two streams, which are for training.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, Value, register
from posexport.encodings.positions import Positions, distances
from posexport.encodings.waves import frequencies
from posexport.graph.ops.head_distance_scores import HEAD_DISTANCE_SCORES
from posexport.graph.ops.waves import Layout, project


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
    clip: int | None = None,
) -> Array:
    """Terms b, c and d of section 3.3, one key at a time; attention computes term a."""
    W_HDC = params["project.weight"].reshape(heads, head_size, hidden)
    u_H1D, v_H1D = params["key_bias"][:, None], params["query_bias"][:, None]
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for j in range(k_BHSD.shape[2]):
        distance_BT = qpos_BT - kpos_BS[:, j, None]
        if clip is not None:
            distance_BT = np.minimum(np.maximum(distance_BT, -clip), clip)
        turn_BTF = distance_BT[..., None] / 10000 ** (np.arange(0, hidden, 2) / hidden)
        R_BTC = np.concatenate([np.sin(turn_BTF), np.cos(turn_BTF)], axis=-1)[..., :hidden]
        WR_BHTD = np.einsum("hdc,btc->bhtd", W_HDC, R_BTC)
        b, c, d = (q_BHTD * WR_BHTD).sum(-1), (u_H1D * k_BHSD[:, :, j, None]).sum(-1), (v_H1D * WR_BHTD).sum(-1)
        out[..., j] = b + c + d
    return out


class ProjectedSinusoids(Encoding):
    """Adds ``(q_i + v) . W R[i - j] + u . k_j`` to the scores, R sinusoids of width ``hidden``.

    ``project.weight`` (W) is [heads head_size, hidden]; ``key_bias`` (u) and ``query_bias`` (v) are [heads, head_size].
    """

    per_layer = True
    layout: Layout

    def __init__(self, *, hidden: Size, heads: Size, head_size: Size, **settings: Value) -> None:
        """``others``: further arguments of the subclass."""
        super().__init__(hidden=hidden, heads=heads, head_size=head_size, **settings)
        self.hidden = hidden
        self.heads = heads
        self.clip: int | None = None
        self.frequencies = frequencies(hidden)
        self.project = nn.Linear(hidden, heads * head_size, bias=False)
        self.key_bias = self._drawn(heads, head_size)
        self.query_bias = self._drawn(heads, head_size)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``(q_i + v) . W R[i - j] + u . k_j``; R only at the call's distances."""
        lowest_1, distance_W = distances(queries, keys)
        if self.clip is not None:
            distance_W = distance_W.clamp(-self.clip, self.clip)
        by_distance_HWD = project(
            distance_W, self.frequencies, self.project.weight, heads=self.heads, layout=self.layout
        )
        # the operator gets q + u, as the keys do: q + v is q + u plus v - u
        rest_HD = self.query_bias - self.key_bias
        tensors = (by_distance_HWD, rest_HD, lowest_1)
        return Term(HEAD_DISTANCE_SCORES, tensors, queries, keys, content_bias=self.key_bias[:, None])


@register(
    "transformer-xl",
    cases=[
        {"hidden": 20, "heads": 5, "head_size": 4},
        {"hidden": 7, "heads": 5, "head_size": 3},
        {"hidden": 20, "heads": 5, "head_size": 4, "clip": 11},
    ],
    source="Dai et al. 2019, arXiv:1901.02860, section 3.3",
    scores=oracle,
)
class TransformerXL(ProjectedSinusoids):
    """Adds ``(q_i + v) . W R[i - j] + u . k_j`` to the scores, R sinusoids, all sines first; W, u, v in every layer.

    ``project.weight`` (W) is [heads head_size, hidden], without a bias; ``key_bias`` (u) and ``query_bias`` (v) are
    [heads, head_size]: the released code's ``r_w_bias`` and ``r_r_bias``. ``clip``: distances beyond it are clipped
    (the released code's ``clamp_len``). Takes any length.
    """

    layout = "half"

    def __init__(self, *, hidden: int, heads: int, head_size: int, clip: Size | None = None) -> None:
        super().__init__(hidden=hidden, heads=heads, head_size=head_size, clip=clip)
        self.clip = clip

    @property
    def boundaries(self) -> list[int]:
        """The longest input without a clipped distance."""
        return [] if self.clip is None else [self.clip + 1]

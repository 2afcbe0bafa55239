"""Learned vectors of the clipped or log-bucketed distance, projected as keys and as queries for every head.

He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (arXiv:2006.03654), section 3.1, content to
position and position to content; log buckets follow version 2 (the code released with it, kept in version 3,
arXiv:2111.09543). Where paper and code differ the code is followed, as released weights need it: both terms take the
vector of the distance query minus key, while the paper's equation 4 has key minus query for position to content.

Buckets are exact: their edges are computed in integers, not by a rounded logarithm. Not done: version 2's
``share_att_key``, where both projections are shared with attention (a loader ties ``pos_key`` and ``pos_query`` to
them); position to position, which no released model has; version 2's convolution and the decoder's absolute positions,
which are the model's.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.errors import PosexportError
from posexport.graph.ops.disentangled_scores import DISENTANGLED_SCORES


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
    span: int = 512,
    max_distance: int | None = None,
    table_norm: bool = False,
    terms: str = "both",
) -> Array:
    """Equation 4's two terms or one, the projected tables gathered at delta(i, j) for every pair, row by row."""
    table = params["table"]
    assert table.shape == (2 * span, hidden)
    if table_norm:
        table = table - table.mean(1, keepdims=True)
        table = table / np.sqrt((table**2).mean(1, keepdims=True) + 1e-7)
        table = table * params["table_norm.weight"] + params["table_norm.bias"]
    key_RHD, query_RHD = (
        (table @ params[f"{name}.weight"].T + params[f"{name}.bias"]).reshape(2 * span, heads, head_size)
        if terms in ("both", term)
        else np.zeros((2 * span, heads, head_size))
        for name, term in (("pos_key", "c2p"), ("pos_query", "p2c"))
    )
    row_BTS = qpos_BT[:, :, None] - kpos_BS[:, None, :]
    if max_distance is not None:
        mid, far = span // 2, np.abs(row_BTS)
        # a hair below, so that powers that are whole numbers are not rounded up by the logarithm
        log_BTS = np.log(np.maximum(far, mid) / mid) / np.log((max_distance - 1) / mid) * (mid - 1)
        row_BTS = np.where(far <= mid, row_BTS, np.sign(row_BTS) * (np.ceil(log_BTS - 1e-9) + mid)).astype(np.int64)
    row_BTS = np.clip(row_BTS + span, 0, 2 * span - 1)
    out = np.zeros((*q_BHTD.shape[:3], k_BHSD.shape[2]))
    for row in np.unique(row_BTS):
        here_B1TS = row_BTS[:, None] == row
        to_position, to_content = q_BHTD * key_RHD[row][:, None], k_BHSD * query_RHD[row][:, None]
        out += here_B1TS * (to_position.sum(-1)[:, :, :, None] + to_content.sum(-1)[:, :, None, :])
    return out


def log_bucket_edges(span: int, max_distance: int) -> list[int]:
    """The last distance of each bucket from ``span // 2`` to ``span - 1``; the bucket after the last has no end.

    Bucket mid + n (mid is ``span // 2``) holds the distances a with n - 1 < (mid - 1) log(a / mid) / log((max_distance
    - 1) / mid) <= n, that is a^(mid - 1) mid^n <= (max_distance - 1)^n mid^(mid - 1).
    """
    mid, last = span // 2, max_distance - 1
    edges = []
    for n in range(span - mid):
        bound = last**n * mid ** (mid - 1)
        # a first guess: the power is rounded, and the whole number is next to it
        distance = int(mid * (last / mid) ** (n / (mid - 1)))
        while distance ** (mid - 1) * mid**n > bound:
            distance -= 1
        while (distance + 1) ** (mid - 1) * mid**n <= bound:
            distance += 1
        edges.append(distance)
    return edges


@register(
    "deberta",
    cases=[
        {"hidden": 20, "heads": 5, "head_size": 4},
        {"hidden": 7, "heads": 5, "head_size": 3, "span": 13},
        {"hidden": 20, "heads": 5, "head_size": 4, "span": 8, "max_distance": 33},
        {"hidden": 20, "heads": 5, "head_size": 4, "span": 7, "max_distance": 100, "table_norm": True},
        {"hidden": 7, "heads": 5, "head_size": 3, "span": 256, "max_distance": 512},
        {"hidden": 7, "heads": 5, "head_size": 3, "span": 13, "terms": "c2p"},
        {"hidden": 20, "heads": 5, "head_size": 4, "span": 8, "max_distance": 33, "terms": "p2c"},
    ],
    source="He et al. 2021, arXiv:2006.03654, equation 4",
    scores=oracle,
)
class Deberta(Encoding):
    """Adds ``q_i . K[d] + k_j . Q[d]`` to the scores, d the clipped or log-bucketed distance i - j; takes any length.

    ``table`` is [2 span, hidden], shared by all layers, from distance ``-span`` up; K and Q are its rows through
    ``pos_key`` and ``pos_query``, two projections a layer. Distances beyond ``span - 1`` and ``-span`` are clipped to
    these. With ``max_distance`` (versions 2 and 3: 512, with ``span`` 256) distances beyond ``span // 2`` share rows
    in buckets that grow with the logarithm. ``table_norm``: the table is layer-normalised first
    (``norm_rel_ebd=layer_norm``). ``terms``: ``c2p``, the first term alone, or ``p2c``, the second. A score is the sum
    of three products, or of two, and is scaled accordingly.
    """

    per_layer = True
    tied = ("table", "table_norm")

    def __init__(
        self,
        *,
        hidden: Size,
        heads: Size,
        head_size: Size,
        span: Size = 512,
        max_distance: Size | None = None,
        table_norm: bool = False,
        terms: Literal["both", "c2p", "p2c"] = "both",
    ) -> None:
        super().__init__(
            hidden=hidden,
            heads=heads,
            head_size=head_size,
            span=span,
            max_distance=max_distance,
            table_norm=table_norm,
            terms=terms,
        )
        if max_distance is not None:
            if span < 4:
                raise PosexportError(f"{self.name}: span must be at least 4 with max_distance, got {span}")
            if max_distance <= span // 2 + 1:
                raise PosexportError(
                    f"{self.name}: max_distance must be above span // 2 + 1 = {span // 2 + 1}, got {max_distance}"
                )
        self.heads = heads
        self.span = span
        self.edges = None if max_distance is None else log_bucket_edges(span, max_distance)
        self.table = self._drawn(2 * span, hidden)
        self.table_norm = nn.LayerNorm(hidden, eps=1e-7) if table_norm else nn.Identity()
        self.pos_key = None if terms == "p2c" else nn.Linear(hidden, heads * head_size)
        self.pos_query = None if terms == "c2p" else nn.Linear(hidden, heads * head_size)
        self.score_terms = 3 if terms == "both" else 2

    @property
    def boundaries(self) -> list[int]:
        """The longest inputs without distances that share a row, and without clipped ones."""
        return [self.span] if self.edges is None else sorted({self.span // 2 + 1, self.edges[-1] + 1})

    def rows(self, distance_W: Tensor, edges: list[int]) -> Tensor:
        """The row of ``table`` for each int64 distance (query minus key), which buckets beyond ``span // 2`` share."""
        far_W = distance_W.abs()
        beyond_WE = far_W[:, None] > torch.tensor(edges, device=distance_W.device)
        bucket_W = far_W.clamp(max=self.span // 2) + beyond_WE.sum(-1)
        return (torch.where(distance_W < 0, -bucket_W, bucket_W) + self.span).clamp(0, 2 * self.span - 1)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """``q_i . K[i - j] + k_j . Q[i - j]``."""
        table = self.table_norm(self.table)
        projected = [
            None if project is None else project(table).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for project in (self.pos_key, self.pos_query)
        ]
        vector = next(vector_HRD for vector_HRD in projected if vector_HRD is not None)
        vectors = [torch.zeros_like(vector) if vector_HRD is None else vector_HRD for vector_HRD in projected]
        if self.edges is None:
            # row by row the distances from -span up: the operator clips those beyond by itself
            lowest_1 = torch.full((1,), -self.span, device=table.device)
        else:
            lowest_1, distance_W = distances(queries, keys)
            row_W = self.rows(distance_W, self.edges)
            vectors = [vector_HRD[:, row_W] for vector_HRD in vectors]
        return Term(DISENTANGLED_SCORES, (*vectors, lowest_1), queries, keys)

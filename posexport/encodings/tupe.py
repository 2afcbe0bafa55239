"""A correlation of absolute positions, untied from the content's, and a bias by distance.

Ke, He, Liu, "Rethinking Positional Encoding in Language Pre-training" (arXiv:2006.15595), equations 7 to 11; the reset
of the first token as in the released code, which the paper leaves open: it resets the bias by distance too.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import FromFour, Size
from posexport.encodings.buckets import bucket, two_sided_edges
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions, distances
from posexport.encodings.tables import StretchableTable, stretch
from posexport.errors import PosexportError
from posexport.graph.ops.position_product_scores import POSITION_PRODUCT_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    max_positions: int = 512,
    hidden: int,
    heads: int,
    buckets: int = 32,
    max_distance: int = 128,
    relative: bool = True,
    cls_reset: bool = True,
    trained: int | None = None,
) -> Array:
    """As released: the correlations of all positions of the table, overwritten for the first token, then looked up."""
    assert trained is None
    table = params["table"]
    # correlations of all pairs of positions
    normed = (table - table.mean(-1, keepdims=True)) / np.sqrt(table.var(-1, keepdims=True) + 1e-5)
    normed = normed * params["norm.weight"] + params["norm.bias"]
    size = hidden // heads
    q_NHD, k_NHD = (
        (normed @ params[f"{role}.weight"].T + params[f"{role}.bias"]).reshape(-1, heads, size)
        for role in ("query", "key")
    )
    everything = np.einsum("nhd,mhd->hnm", q_NHD, k_NHD) / np.sqrt(2 * size)
    from_cls, to_cls = (everything[:, n, n, None] for n in (0, 1))
    if cls_reset:
        everything = everything[:, 1:, 1:]
        everything[:, :, 0] = to_cls
        everything[:, 0, :] = from_cls
    assert everything.shape[1] == max_positions
    # looked up pair by pair, with the bias of the distance
    out = np.zeros((len(q_BHTD), heads, q_BHTD.shape[2], k_BHSD.shape[2]))
    near, half = buckets // 4, buckets // 2
    for b, i, j in np.ndindex(len(out), *out.shape[2:]):
        t, s = int(qpos_BT[b, i]), int(kpos_BS[b, j])
        out[b, :, i, j] = everything[:, t, s]
        if relative:
            n = abs(t - s)
            if n >= near:
                far = np.log(n / near) / np.log(max_distance / near) * (half - near)
                n = min(near + int(far + 1e-9), half - 1)
            table_row = n + half * (s > t)
            if cls_reset and t == 0:
                table_row = half
            elif cls_reset and s == 0:
                table_row = buckets
            out[b, :, i, j] += params["bias"][table_row]
    return out


@register(
    "tupe",
    cases=[
        {"max_positions": 260, "hidden": 20, "heads": 5},
        {"max_positions": 260, "hidden": 21, "heads": 3, "buckets": 12, "max_distance": 40},
        {"max_positions": 270, "hidden": 8, "heads": 2, "relative": False},
        {"max_positions": 2053, "hidden": 6, "heads": 2, "cls_reset": False},
        {"max_positions": 270, "hidden": 6, "heads": 1, "cls_reset": False, "relative": False},
    ],
    source="Ke et al. 2021, arXiv:2006.15595, equations 7 to 11",
    scores=oracle,
)
class Tupe(StretchableTable):
    """Adds ``(p_i Uq) . (p_j Uk) / sqrt(2d) + b[bucket(i - j)]``; nothing is added to the embeddings; limited length.

    The content's products are scaled by 1/sqrt(2d) as well (``score_terms`` is 2). One ``table`` of positions,
    normalised, one pair of projections and one ``bias`` for all layers. ``relative``: with b, in T5's buckets (TUPE-R),
    or without (TUPE-A). ``cls_reset``: the token at position 0 sees all others, and is seen by them, with one score
    each: the table's first two rows with themselves (the first belongs to no position), and two rows of ``bias``.
    ``table`` is [max_positions + cls_reset, hidden], ``bias`` is [buckets + cls_reset, heads]. ``trained``: how many
    positions the table was trained for, where it has been stretched to ``max_positions`` since.
    """

    score_terms = 2
    shift_invariant = False

    def __init__(
        self,
        *,
        max_positions: Size = 512,
        hidden: Size,
        heads: Size,
        buckets: FromFour = 32,
        max_distance: Size = 128,
        relative: bool = True,
        cls_reset: bool = True,
        trained: int | None = None,
    ) -> None:
        super().__init__(
            max_positions=max_positions,
            hidden=hidden,
            heads=heads,
            buckets=buckets,
            max_distance=max_distance,
            relative=relative,
            cls_reset=cls_reset,
            trained=trained,
        )
        if hidden % heads:
            raise PosexportError(f"{self.name}: hidden must be a multiple of heads, got hidden={hidden}, heads={heads}")
        bucket_edges = two_sided_edges(self.name, buckets, max_distance)
        if trained is not None and not 1 <= trained <= max_positions:
            raise PosexportError(f"{self.name}: trained must be from 1 to max_positions={max_positions}, got {trained}")
        # a table, projections of it, and buckets of distances; one row more for the first token
        self.max_positions = max_positions
        self.trained = max_positions if trained is None else trained
        self.heads = heads
        self.side = buckets // 2
        self.edges = bucket_edges if relative else []
        self.cls_reset = cls_reset
        self.table = self._drawn(max_positions + cls_reset, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.bias = self._drawn(buckets + cls_reset, heads) if relative else None

    @property
    def boundaries(self) -> list[int]:
        """The table's end, and the longest inputs without a wide bucket and without the last."""
        lengths = [self.trained, self.max_positions, *self.edges[self.side // 2 - 1 : self.side // 2], *self.edges[-1:]]
        return sorted({length for length in lengths if length <= self.max_positions})

    def interpolated(self, length: int, *, overhead: int = 0) -> Encoding:
        """The table stretched linearly to ``length`` positions; distances keep their buckets.

        The rows that the reset reads (no position, and position 0) stay as they are, and so do the ``overhead``
        rows at the start. PosexportError unless ``length`` is more than the table holds.
        """
        self._check_longer(length, overhead)
        unchanged = overhead + self.cls_reset * (2 if self.max_positions - overhead > 1 else 1)
        table = stretch(self.table, overhead + length + self.cls_reset - unchanged, kept=unchanged)
        same: dict[str, nn.Parameter | nn.Module] = {"norm": self.norm, "query": self.query, "key": self.key}
        if self.bias is not None:
            same["bias"] = self.bias
        return self._copy_with({**same, "table": table}, max_positions=overhead + length, trained=self.trained)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """The vectors of these positions, with the reset as two channels more, and the bias of every distance."""
        dtype = q_BHTD.dtype
        wide = torch.promote_types(dtype, torch.float32)
        q_GHTD, k_GHSD = self._vectors(queries.ids_BT, self.query, wide), self._vectors(keys.ids_BT, self.key, wide)
        q_GHTD = q_GHTD * (2 * q_GHTD.shape[-1]) ** -0.5
        if self.cls_reset:
            q_GHTD, k_GHSD = self._reset(q_GHTD, k_GHSD, queries.ids_BT, keys.ids_BT)
        lowest_1, distance_W = distances(queries, keys)
        by_distance_HW = self._bias(distance_W, wide)
        first_2 = torch.cat([queries.slots_T[:1], keys.slots_T[:1]])
        tensors = (q_GHTD.to(dtype), k_GHSD.to(dtype), by_distance_HW.to(dtype), lowest_1, first_2)
        return Term(POSITION_PRODUCT_SCORES, tensors, queries, keys)

    def _vectors(self, ids_BT: Tensor, linear: nn.Linear, wide: torch.dtype, skipped: int | None = None) -> Tensor:
        """[B, H, T, D]: the table's rows, normalised, mapped and split; ``skipped`` rows are not for positions."""
        rows_BT = ids_BT + (int(self.cls_reset) if skipped is None else skipped)
        x_BTC = F.embedding(rows_BT, self.table).to(wide)
        norm = self.norm
        x_BTC = F.layer_norm(x_BTC, (x_BTC.shape[-1],), norm.weight.to(wide), norm.bias.to(wide), norm.eps)
        x_BTC = F.linear(x_BTC, linear.weight.to(wide), linear.bias.to(wide))
        heads: Tensor = x_BTC.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        return heads

    def _bias(self, distance: Tensor, wide: torch.dtype) -> Tensor:
        """[..., H, W] of int64 distances [..., W]; zeros without a bias."""
        if self.bias is None:
            none_H1 = torch.zeros(self.heads, 1, dtype=wide, device=distance.device)
            return none_H1.expand(*distance.shape[:-1], -1, distance.shape[-1])
        return F.embedding(bucket(distance, self.edges, bidirectional=True), self.bias).mT.to(wide)

    def _reset(self, q_GHTD: Tensor, k_GHSD: Tensor, qpos_GT: Tensor, kpos_GS: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors with the products of ``q`` and ``k``, except in the first token's row and column.

        There the product is the score minus the bias by distance, which is added to all.
        """
        two = torch.arange(2, device=qpos_GT.device)[None]
        wide = q_GHTD.dtype
        ends_1H2D = self._vectors(two, self.query, wide, 0), self._vectors(two, self.key, wide, 0)
        score_H2 = (ends_1H2D[0] * ends_1H2D[1]).sum(-1)[0] * (2 * q_GHTD.shape[-1]) ** -0.5
        if self.bias is not None:
            score_H2 = score_H2 + torch.stack([self.bias[self.side], self.bias[-1]], -1).to(wide)
        query_is_G1T1, key_is_G1S1 = ((ids == 0)[:, None, :, None].to(wide) for ids in (qpos_GT, kpos_GS))
        from_first_GHS1 = score_H2[:, :1, None] - self._bias(-kpos_GS, wide)[..., None]
        to_first_GHT1 = score_H2[:, 1:, None] - self._bias(qpos_GT, wide)[..., None]
        query_other = 1 - query_is_G1T1
        q = torch.cat([q_GHTD * query_other, query_is_G1T1.expand_as(to_first_GHT1), to_first_GHT1 * query_other], -1)
        k = torch.cat([k_GHSD * (1 - key_is_G1S1), from_first_GHS1, key_is_G1S1.expand_as(from_first_GHS1)], -1)
        return q, k

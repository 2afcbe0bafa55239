"""A learned vector for every position that the context counts, met by the queries.

Golovneva et al., "Contextual Position Encoding" (arXiv:2405.18719), section 4 and the code in its appendix.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, Term, register
from posexport.encodings.positions import Positions
from posexport.graph.ops.contextual_scores import CONTEXTUAL_SCORES


def oracle(
    q_BHTD: Array,
    k_BHSD: Array,
    qpos_BT: Array,
    kpos_BS: Array,
    *,
    params: Mapping[str, Array],
    head_size: int,
    counted: int = 64,
) -> Array:
    """The appendix's code on whole matrices: gates, their sums from the right, interpolated logits."""
    logits_BHTS = np.einsum("bhtd,bhsd->bhts", q_BHTD, k_BHSD) / np.sqrt(head_size)
    seen_TS = kpos_BS[0][None, :] <= qpos_BT[0][:, None]
    gates_BHTS = np.where(seen_TS, 1 / (1 + np.exp(-logits_BHTS)), 0)
    places_BHTS = np.minimum(np.cumsum(gates_BHTS[..., ::-1], -1)[..., ::-1], counted - 1)
    out: Array = np.zeros_like(places_BHTS)
    for b, h, i in np.ndindex(out.shape[:3]):
        whole_P = params["table"] @ q_BHTD[b, h, i]
        out[b, h, i] = np.interp(places_BHTS[b, h, i], np.arange(counted), whole_P)
    return out


@register(
    "cope",
    cases=[{"head_size": 4, "counted": 300}, {"head_size": 7, "counted": 9}],
    source="Golovneva et al. 2024, arXiv:2405.18719, section 4",
    scores=oracle,
)
class Cope(Encoding):
    """Adds ``q_i . e[p_ij]`` to the scores, p_ij the sum of gates from key j to query i; for decoders; any length.

    ``table`` is [counted, head_size], one a layer, shared by its heads; larger positions are clipped to its last. The
    gates are as in the released code: ``sigmoid(q_i . k_j / sqrt(head_size))``, and 0 for keys after the query. The
    scores are not scaled. Keys that are padding must be before a row's tokens, or after them, where no gate counts
    them.
    """

    per_layer = True
    causal = True

    def __init__(self, *, head_size: Size, counted: Size = 64) -> None:
        super().__init__(head_size=head_size, counted=counted)
        self.head_size = head_size
        self.table = self._drawn(counted, head_size)

    @property
    def boundaries(self) -> list[int]:
        """The longest input that cannot count past the table."""
        return [self.table.shape[0]]

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Returns the term ``q_i . e[p_ij]``."""
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        gate_scale_1 = torch.full((1,), self.head_size**-0.5, dtype=wide, device=q_BHTD.device)
        return Term(CONTEXTUAL_SCORES, (self.table, gate_scale_1), queries, keys)

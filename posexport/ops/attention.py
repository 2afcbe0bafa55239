"""Names for attention with position terms: one function of domain ``posexport`` per kind.

A kind is which score operator, which value operator and which mask take part. Its node takes
``q [B, H, T, D], k [B, H, S, D], v [B, H, S, V], (mask), tensors of the score term, of the value term,
qpos [T], kpos [S]`` and the attribute ``scale``; it gives the context [B, H, T, V]:
``softmax(scale * (q k^T + scores) + mask) v + values``.
"""

from dataclasses import dataclass
from typing import Literal

from posexport.ops.base import OPERATORS, Operator

#: ``keys``: one row for all queries, [B, 1, 1, S]; ``pairs``: [B or 1, 1 or H, T, S].
Mask = Literal["none", "keys", "pairs"]
_MASK_PREFIX: dict[str, Mask] = {"": "none", "Masked": "keys", "PairMasked": "pairs"}


@dataclass(frozen=True)
class AttentionKind:
    """Which terms and which mask an attention node has."""

    scores: Operator | None
    values: Operator | None
    mask: Mask

    @property
    def name(self) -> str:
        """The ``op_type`` of its nodes, such as ``MaskedRelativeKeyAttention``."""
        prefix = next(word for word, mask in _MASK_PREFIX.items() if mask == self.mask)
        labels = [o.name.removesuffix("Scores") for o in (self.scores, self.values) if o is not None]
        return prefix + "".join(labels) + "Attention"


def kinds() -> dict[str, AttentionKind]:
    """Every kind that the registered operators allow, by name."""
    operators = list(OPERATORS.values())
    scores = [None, *(o for o in operators if o.gives == "scores")]
    values = [None, *(o for o in operators if o.gives == "values")]
    found = [AttentionKind(s, v, m) for s in scores for v in values for m in _MASK_PREFIX.values() if s or v]
    return {kind.name: kind for kind in found}

"""Names for attention with position terms: one function of domain ``posexport`` per kind.

A kind is which operators, which mask and which order take part. Its node takes ``q [B, H, T, D], k [B, H, S, D],
v [B, H, S, V], (mask), (sink [H]), tensors of the base, of the score term, of the value term, qpos [T], kpos [S]`` and
the attribute ``scale``; it gives the context [B, H, T, V]: ``softmax(scale * (q k^T + scores) + mask) v + values``. A
``base`` operator stands in the place of ``q k^T``. A causal kind masks keys after the query, by their positions, with
the attribute ``lowest``. In a grouped kind k and v have the heads that groups of the queries' share; in a static one
they have more places than S, of which the first S count; a sink takes part in the softmax as a key without a value.
"""

from dataclasses import dataclass
from typing import Literal

from posexport.ops.base import OPERATORS, Operator

#: ``keys``: one row for all queries, [B, 1, 1, S]; ``pairs``: [B or 1, 1 or H, T, S].
Mask = Literal["none", "keys", "pairs"]
_MASK_PREFIX: dict[str, Mask] = {"": "none", "Masked": "keys", "PairMasked": "pairs"}


@dataclass(frozen=True)
class AttentionKind:
    """Which terms, mask and order an attention node has."""

    scores: Operator | None
    values: Operator | None
    mask: Mask
    causal: bool = False
    base: Operator | None = None
    #: groups of heads share keys and values, which then have fewer heads
    grouped: bool = False
    #: keys and values stand in a cache of fixed size, whose other places are not attended to
    static: bool = False
    #: a score of every head that has no key takes part in the softmax
    sink: bool = False

    @property
    def operators(self) -> dict[str, Operator]:
        """The operators that take part, by the part they take, in the order of their tensors."""
        named = {"base": self.base, "scores": self.scores, "values": self.values}
        return {part: operator for part, operator in named.items() if operator is not None}

    @property
    def name(self) -> str:
        """The ``op_type`` of its nodes, such as ``CausalMaskedRelativeKeyAttention``."""
        prefix = next(word for word, mask in _MASK_PREFIX.items() if mask == self.mask)
        labels = [operator.name.removesuffix("Scores") for operator in self.operators.values()]
        flags = {"Sink": self.sink, "Static": self.static, "Grouped": self.grouped, "Causal": self.causal}
        return "".join([*(word for word, on in flags.items() if on), prefix, *labels, "Attention"])


def kinds() -> dict[str, AttentionKind]:
    """Every kind that the registered operators allow, by name."""
    by_part: dict[str, list[Operator | None]] = {
        part: [None, *(o for o in OPERATORS.values() if o.gives == part)] for part in ("base", "scores", "values")
    }
    found = [
        AttentionKind(scores, values, mask, causal, base, grouped, sink=sink)
        for base in by_part["base"]
        for scores in by_part["scores"]
        for values in by_part["values"]
        for mask in _MASK_PREFIX.values()
        for causal in (False, True)
        for grouped in (False, True)
        for sink in (False, True)
        if base or scores or values
    ]
    # without terms attention is plain operators, but for what a cache of fixed size needs
    found += [
        AttentionKind(None, None, "keys", True, None, grouped, static=True, sink=sink)
        for grouped in (False, True)
        for sink in (False, True)
    ]
    return {kind.name: kind for kind in found}

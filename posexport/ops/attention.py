"""Names for attention: one function of domain ``posexport`` per kind.

A kind is which operators, which mask and which order take part. Its node takes ``q [B, H, T, D], k [B, H, S, D],
v [B, H, S, V], (bias), (mask), (sink [H]), tensors of the base, of the score term, of the value term, (qpos [T], kpos
[S])`` and the attributes ``scale`` and ``lowest``, what a dropped score becomes; it gives the context [B, H, T, V]:
``softmax(scale * (q k^T + scores) + mask) v + values``. A ``base`` operator stands in the place of ``q k^T``. A causal
kind masks keys after the query, by their positions. In a grouped kind k and v have the heads that groups of the
queries' share; in a static one they have more places than S, of which the first S count; a sink takes part in the
softmax as a key without a value. A cached one takes the
new tokens' k and v and buffers ``past_k, past_v`` [B, H, C, D] after them, writes the former into the latter at the
places from ``qpos`` on, attends to the first S of these, and gives the buffers too; it also takes what
`posexport.ops.cached_calls` says of the call. In a biased one all that is added to the scores stands ready in ``bias``,
[B or 1, H or 1, T, S], computed once for many layers. Where that would be too much to hold, ``bias`` has other axes:
of a term of distances alone it is what `posexport.lowering.moved` gives, of others nothing.
A joined one takes q, k and v, and gives the context, with the heads side by side: [B, T, H D], as the maps before and
after it have them.
"""

import functools
from dataclasses import dataclass, replace
from typing import Literal

from posexport.ops.cached_calls import OF_CALL
from posexport.ops.operator import OPERATORS, Operator

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
    #: all that is added to the scores may be given
    biased: bool = False
    #: k and v are the new tokens', the node writes them to a cache of fixed size, and gives what it holds then
    cached: bool = False
    #: the heads of q, k, v and of the context stand side by side
    joined: bool = False
    #: D, where all nodes have the same; not part of the name
    head_size: int | None = None
    #: the score term stands ready in the scope, as ``term``; not part of the name
    termed: bool = False

    @property
    def operators(self) -> dict[str, Operator]:
        """The operators that take part, by the part they take, in the order of their tensors."""
        named = {"base": self.base, "scores": self.scores, "values": self.values}
        return {part: operator for part, operator in named.items() if operator is not None}

    @property
    def ordered(self) -> bool:
        """Positions take part."""
        return self.causal or bool(self.operators)

    @property
    def shifts(self) -> bool:
        """The score term is of distances alone."""
        return self.scores is not None and self.scores.shifts

    @property
    def name(self) -> str:
        """The ``op_type`` of its nodes, such as ``CausalMaskedRelativeKeyAttention``."""
        flags = {
            "Joined": self.joined,
            "Cached": self.cached,
            "Sink": self.sink,
            "Static": self.static,
            "Grouped": self.grouped,
            "Biased": self.biased,
        }
        return "".join([*(word for word, on in flags.items() if on), self.summands, "Attention"])

    @property
    def summands(self) -> str:
        """The part of the name that says what is added to the scores."""
        prefix = next(word for word, mask in _MASK_PREFIX.items() if mask == self.mask)
        labels = [operator.name.removesuffix("Scores") for operator in self.operators.values()]
        return "".join(["Causal" * self.causal, prefix, *labels])

    @property
    def inputs(self) -> list[str]:
        """Names of its nodes' inputs, in order."""
        given = {
            "past_k": self.cached,
            "past_v": self.cached,
            **dict.fromkeys(OF_CALL, self.cached),
            "bias": self.biased,
            "mask": self.mask != "none",
            "sink": self.sink,
        }
        own = [f"{part}_{name}" for part, operator in self.operators.items() for name in operator.own]
        return ["q", "k", "v", *(name for name, on in given.items() if on), *own, *["qpos", "kpos"] * self.ordered]

    @property
    def outputs(self) -> list[str]:
        """Names of its nodes' outputs."""
        return ["context", *["present_k", "present_v"] * self.cached]

    @property
    def attributes(self) -> list[str]:
        """Names of its nodes' attributes.

        ``heads`` of queries, ``groups`` of keys and values; in a joined kind the shapes that take them apart.
        """
        return ["scale", "lowest", "heads", "groups", *dict.fromkeys(self.heads_of.values())]

    @property
    def heads_of(self) -> dict[str, str]:
        """Names of the inputs whose heads stand side by side, and of the attributes that take them apart."""
        return {"q": "by_head", "k": "by_group", "v": "by_group"} if self.joined else {}

    @property
    def apart(self) -> "AttentionKind":
        """The same with heads apart."""
        return replace(self, joined=False)

    @property
    def bias(self) -> "BiasKind | None":
        """What all that is added to the scores can be computed by, for many layers; None where q or k take part.

        A mask over keys alone is small as it is, one over pairs is ready.
        """
        reads = self.scores is not None and bool(self.scores.takes)
        if reads or self.mask == "pairs" or not (self.scores or self.causal):
            return None
        return BiasKind(AttentionKind(self.scores, None, self.mask, self.causal))


@dataclass(frozen=True)
class BiasKind:
    """All that ``of`` adds to its scores: from (mask), tensors of the score term, qpos and kpos to ``bias``."""

    of: AttentionKind

    @property
    def name(self) -> str:
        """The ``op_type`` of its nodes, such as ``CausalMaskedDistanceBias``."""
        return f"{self.of.summands}Bias"

    @property
    def inputs(self) -> list[str]:
        """Names of its nodes' inputs, in order; the queries and keys it lacks are those of the attention."""
        return self.of.inputs[3:]

    @property
    def outputs(self) -> list[str]:
        """Names of its nodes' outputs."""
        return ["bias"]

    @property
    def attributes(self) -> list[str]:
        """Names of its nodes' attributes, which are those of the attention."""
        return self.of.attributes

    @property
    def heads_of(self) -> dict[str, str]:
        """None: it takes no heads."""
        return {}

    @property
    def apart(self) -> "BiasKind":
        """Itself."""
        return self


@functools.cache
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
    ]
    found += [
        AttentionKind(None, None, "keys", True, None, grouped, static=True, sink=sink)
        for grouped in (False, True)
        for sink in (False, True)
    ]
    found += [replace(kind, biased=True) for kind in found if kind.bias and not kind.static]
    found += [
        replace(kind, cached=True)
        for kind in found
        if kind.causal and kind.mask == "keys" and not (kind.static or kind.base or kind.values or kind.sink)
    ]
    found += [replace(kind, joined=True) for kind in found if not kind.static]
    return {kind.name: kind for kind in found}


@functools.cache
def bias_kinds() -> dict[str, BiasKind]:
    """Every kind of bias, by name."""
    return {kind.bias.name: kind.bias for kind in kinds().values() if kind.bias}

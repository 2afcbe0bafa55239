"""Attention nodes of domain ``posexport``: ``softmax(scale * (q k^T + scores) + mask) v + values``.

A node's further attributes: ``scale``; ``lowest``, the score of a dropped key; ``heads`` of the
queries and ``kv_heads`` of keys and values; with packed heads the shapes that split them. Shape letters: B batch, H
heads, T queries, S keys, D head size, V head size of the values, C capacity of a static KV cache.

| field | value | meaning |
|---|---|---|
| `base` | an operator's name | its scores replace q k^T |
| `scores` | an operator's name | its scores are added: a relative position bias |
| `values` | an operator's name | its values, of the probabilities, are added to the context |
| `mask` | none, keys, pairs | an input that is added: [B, 1, 1, S] or [B or 1, H or 1, T, S] |
| `causal` | bool | keys after the query, by their positions, are dropped |
| `grouped` | bool | grouped-query attention: k and v have KV heads, which groups of the queries' heads share |
| `sink` | bool | a score of every head, [H], takes part in the softmax as a key without a value |
| `cache` | none, static, append, grow | KV cache: k and v are a static one, written into it or appended to one |
| `bias` | none, full, tiled | an input ``bias`` is all that is added to the scores, computed once for many layers |
| `packed` | bool | q, k, v and the context have packed heads, [B, T, H D], not [B, H, T, D] |
| `single` | bool | one that appends: a single token in each row |

Of a static KV cache the first S of C slots are used. With ``append`` a node writes k and v into ``past_k, past_v`` [B,
H, C, D] and returns the caches too; with ``grow`` it concatenates them to [B, H, P, D]. Both read what
`posexport.graph.ops.cache` computes once per call. A full ``bias`` is [B or 1, H or 1, T, S]. A tiled one has this
shape if ``bias_is_full``; otherwise it is empty, and each tile of queries computes its bias, a Toeplitz one from
``bias_strip`` (`posexport.graph.lowering.toeplitz`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from posexport.graph.ops.cache import KEPT, OF_CALL
from posexport.graph.ops.operator import OPERATORS, Operator
from posexport.graph.ops.spec import NodeSpec

Mask = Literal["none", "keys", "pairs"]
_MASK_PREFIX: dict[Mask, str] = {"none": "", "keys": "Masked", "pairs": "PairMasked"}


@dataclass(frozen=True)
class _Scored(NodeSpec):
    """The fields of a record for the terms added to the scores."""

    scores: str | None = None
    mask: Mask = "none"
    causal: bool = False

    @property
    def operators(self) -> dict[str, Operator]:
        """The operators by their role (``base``, ``scores``, ``values``), in the order of their tensors."""
        names = {hook: getattr(self, hook, None) for hook in ("base", "scores", "values")}
        return {hook: OPERATORS[name] for hook, name in names.items() if name is not None}

    @property
    def score_operator(self) -> Operator | None:
        return None if self.scores is None else OPERATORS[self.scores]

    @property
    def ordered(self) -> bool:
        return self.causal or bool(self.operators)

    @property
    def toeplitz(self) -> bool:
        """The added scores depend on distances alone."""
        return self.score_operator is not None and self.score_operator.shifts

    @property
    def _label(self) -> str:
        """The middle of a name, for example ``CausalMaskedRelativeKey``."""
        labels = [operator.name.removesuffix("Scores") for operator in self.operators.values()]
        return "".join(["Causal" * self.causal, _MASK_PREFIX[self.mask], *labels])

    @property
    def _tensors(self) -> list[str]:
        """Names of the operators' tensors and of the positions."""
        parameters = [f"{hook}_{name}" for hook, operator in self.operators.items() for name in operator.own]
        return [*parameters, *["qpos", "kpos"] * self.ordered]


@dataclass(frozen=True)
class AttentionSpec(_Scored):
    """What an attention node computes: the table above."""

    op_type: ClassVar[str] = "Attention"

    values: str | None = None
    base: str | None = None
    grouped: bool = False
    sink: bool = False
    cache: Literal["none", "static", "append", "grow"] = "none"
    bias: Literal["none", "full", "tiled"] = "none"
    packed: bool = False
    single: bool = False
    #: of one that appends: an input says whether causal order drops all that the mask does
    order_known: bool = False
    #: inputs hold an order with the kept keys first, and their number (`posexport.graph.ops.cache`)
    kept_known: bool = False
    #: D, where the trace knows it
    head_size: int | None = None

    @property
    def name(self) -> str:
        """For example ``CausalMaskedRelativeKeyAttention``."""
        words = {
            "Single": self.single,
            "Packed": self.packed,
            "Cached": self.cache == "append",
            "Growing": self.cache == "grow",
            "Sink": self.sink,
            "Static": self.cache == "static",
            "Grouped": self.grouped,
            "Biased": self.bias != "none",
            "Counted": self.kept_known,
        }
        return "".join([*(word for word, on in words.items() if on), self._label, "Attention"])

    @property
    def inputs(self) -> list[str]:
        """``q, k, v``, what the fields name, tensors of the operators, positions of queries [T] and keys [S]."""
        appends = self.appends
        present = {
            "past_k": appends,
            "past_v": appends,
            **dict.fromkeys(OF_CALL, appends),
            "order_suffices": self.order_known,
            "bias": self.bias != "none",
            "bias_is_full": self.bias == "tiled",
            "bias_strip": self.bias == "tiled" and self.toeplitz,
            "mask": self.mask != "none",
            **dict.fromkeys(KEPT, self.kept_known),
            "sink": self.sink,
        }
        return ["q", "k", "v", *(name for name, on in present.items() if on), *self._tensors]

    @property
    def outputs(self) -> list[str]:
        return ["context", *["present_k", "present_v"] * self.appends]

    @property
    def appends(self) -> bool:
        """The node returns a KV cache that includes its keys and values."""
        return self.cache in ("append", "grow")

    @property
    def head_shapes(self) -> dict[str, str]:
        return {"q": "split_heads", "k": "split_kv_heads", "v": "split_kv_heads"} if self.packed else {}

    @property
    def split(self) -> Self:
        return replace(self, packed=False)

    @property
    def own_scores(self) -> Operator | None:
        """The score operator that the node evaluates; None where a bias was computed before."""
        return self.score_operator if self.bias == "none" else None

    @property
    def shared_bias(self) -> "BiasSpec | None":
        """The record of a node that computes the bias once for many layers; None if that is impossible or pays nothing.

        Impossible where the operator reads q or k. A mask over keys alone is small, and one over pairs is a bias
        already; where causal order may suffice, most calls have no bias.
        """
        reads = self.score_operator is not None and bool(self.score_operator.takes)
        adds = self.scores is not None or (self.causal and self.mask != "none")
        if reads or not adds or self.mask == "pairs" or self.cache == "static" or self.order_known:
            return None
        return BiasSpec(self.scores, self.mask, self.causal)


@dataclass(frozen=True)
class BiasSpec(_Scored):
    """The bias that many layers add to their scores, from the mask, parameters of the score operator and positions.

    ``tiled``: the outputs are those that an attention with a tiled ``bias`` reads.
    """

    op_type: ClassVar[str] = "AttentionBias"

    tiled: bool = False

    @property
    def name(self) -> str:
        """For example ``CausalMaskedDistanceBias``."""
        return f"{self._label}Bias"

    @property
    def inputs(self) -> list[str]:
        return [*["mask"] * (self.mask != "none"), *self._tensors]

    @property
    def outputs(self) -> list[str]:
        return ["bias", *["bias_is_full"] * self.tiled, *["bias_strip"] * (self.tiled and self.toeplitz)]

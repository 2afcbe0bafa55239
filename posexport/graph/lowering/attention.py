"""Attention's formula, part by part, for the lowerings to put together.

The names follow Dao et al., "FlashAttention-2" (arXiv:2307.08691): scores S, probabilities P, output O, for the
queries Q and keys K at hand, all of them or a tile's. Shape letters: B batch, H heads, T queries, S keys, D head size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import split_heads
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN, WHOLE
from posexport.graph.ops.skew import skews


@dataclass(frozen=True)
class Attention:
    """Attention over some queries and keys.

    Attributes:
        x: the node's inputs by name (`AttentionSpec.inputs`), or the same for a tile.
        like: a value with the type of the scores.
        position_bias: [B or 1, H, T, S], instead of the score operator.
        whole: queries and keys are in whole chunks (`posexport.graph.ops.skew`).
        mask_drops: bool scalar: the mask drops some keys; None if unknown. A mask that drops none is not added.
    """

    g: Builder
    spec: AttentionSpec
    x: Mapping[str, ir.Value]
    like: ir.Value
    position_bias: ir.Value | None = None
    whole: bool = False
    mask_drops: ir.Value | None = None

    def over(self, **inputs: ir.Value) -> "Attention":
        """The same over other queries or keys."""
        return replace(self, x={**self.x, **inputs})

    def split(self) -> "Attention":
        """Returns a copy with split heads: q, k and v are [B, H, T, D]."""
        if not self.spec.packed:
            return self
        return replace(self, spec=self.spec.split, x={**self.x, **{name: self.heads(name) for name in "qkv"}})

    def heads(self, name: str) -> ir.Value:
        """``q``, ``k`` or ``v`` with split heads, [B, H, T, D]."""
        shape = self.spec.head_shapes.get(name)
        return self.x[name] if shape is None else split_heads(self.g, self.x[name], self.g.attribute(shape, list))

    def queries(self) -> ir.Value:
        """Returns the number of queries T, int64 [1]."""
        return self.g.size(self.x["q"], 1 if self.spec.packed else 2)

    def scale(self) -> ir.Value:
        return self.g.CastLike(self.g.attribute("scale", float), self.like, name="scale")

    def scaled(self, x: ir.Value) -> ir.Value:
        """Queries or keys times the scale, which saves a pass over the scores."""
        return self.g.Mul(x, self.scale(), name=f"{x.name}_scaled")

    def transposed_keys(self) -> ir.Value:
        """Returns the transposed keys K^T, [B, H, D, S]."""
        return self.g.Transpose(self.x["k"], perm=[0, 1, 3, 2], name="k_transposed")

    def prepare_keys(self, *, by_operator: bool) -> None:
        """Writes what only the keys decide where it is called, so that a loop inside finds it done."""
        if self.spec.base is None and not by_operator:
            self.transposed_keys()
        if self._reads_scaled("k"):
            self.scaled(self.heads("k"))

    def _reads_scaled(self, name: str) -> bool:
        scores = self.spec.own_scores
        return scores is not None and scores.scaled and scores.linear and name in scores.takes

    def product(self, x: ir.Value, y: ir.Value, name: str = "product") -> ir.Value:
        """``x [B, H, T, N]`` times ``y``, K^T or V of every KV head, [B, H, T, M].

        In GQA the heads of a group are stacked along T: one product for each KV head, no copies of keys and values.
        """
        g = self.g
        if not self.spec.grouped:
            return g.MatMul(x, y, name=name)
        # not the heads of y: a transposed k that only a product reads is fused into it
        stacked = g.Reshape(x, self._by_heads_of("k"))
        return g.Reshape(g.MatMul(stacked, y), self._by_heads_of("q"), name=name)

    def _by_heads_of(self, name: str) -> ir.Value:
        """The shape [B, heads of ``name``, all the rest, N] for a value [B, ..., N]."""
        heads = self.g.attribute("heads" if name == "q" else "kv_heads", int)
        return self.g.shape([0], self.g.Reshape(heads, [1]), [-1, 0])

    def operator(self, term: str, **tensors: ir.Value) -> ir.Value:
        """Calls the operator of a ``term`` (base, scores, values); ``tensors`` replace inputs of the same name."""
        operator = self.spec.operators[term]
        names = [*operator.takes, *(f"{term}_{name}" for name in operator.own), "qpos", "kpos"]
        whole = WHOLE if self.whole and skews(operator) else ""
        inputs = [tensors[name] if name in tensors else self.x[name] for name in names]
        name = "position_bias" if term == "scores" else ""
        return self.g.call(operator, *inputs, domain=DOMAIN, whole=whole, name=name)

    def own_bias(self) -> ir.Value:
        """What the score operator adds to scaled scores."""
        if self.position_bias is not None:
            return self.position_bias
        operator = self.spec.score_operator
        assert operator is not None
        tensors = {name: self.heads(name) for name in operator.takes}
        if not operator.scaled:
            return self.operator("scores", **tensors)
        if not operator.linear or not operator.takes:
            return self.g.Mul(self.operator("scores", **tensors), self.scale(), name="position_bias")
        scaled_inputs = {f"scores_{name}": self.x[f"scores_{name}"] for name in operator.scaled_along}
        return self.operator(
            "scores", **{name: self.scaled(value) for name, value in (tensors | scaled_inputs).items()}
        )

    def later(self) -> ir.Value:
        """Which keys are after the query, bool [T, S]."""
        return self.g.Less(self.g.Unsqueeze(self.x["qpos"], [-1]), self.x["kpos"], name="later")

    def lowest(self) -> ir.Value:
        return self.g.CastLike(self.g.attribute("lowest", float), self.like, name="lowest")

    def bias(self) -> ir.Value | None:
        """All that is added to the scaled scores, as one value [B or 1, H or 1, T, S]; None for nothing."""
        if self.spec.causal and self.spec.scores is None and self._has_mask():
            # one pass over the pairs: keys that are later and masked too are dropped as the others are
            return self.g.Where(self.later(), self.lowest(), self.x["mask"], name="bias_and_mask")
        added = self.unmasked_bias()
        return self.masked(added) if self._has_mask() else added

    def _has_mask(self) -> bool:
        return self.spec.mask != "none" and self.spec.bias == "none"

    @property
    def adds_mask_alone(self) -> bool:
        """All that is added to the scores is a mask over keys."""
        spec = self.spec
        return spec.mask == "keys" and spec.bias == "none" and spec.scores is None and not spec.causal

    @property
    def adds(self) -> bool:
        """Something is added to the scores."""
        spec = self.spec
        return spec.mask != "none" or spec.bias != "none" or spec.scores is not None or spec.causal

    def unmasked_bias(self) -> ir.Value | None:
        """Returns `bias` without the mask, or None."""
        g = self.g
        if self.spec.bias != "none":
            return self.x["bias"]
        added = None if self.spec.scores is None else self.own_bias()
        if not self.spec.causal:
            return added
        if added is not None:
            return g.Where(self.later(), self.lowest(), added, name="causal_bias")
        pairs = g.Where(self.later(), self.lowest(), g.CastLike(0.0, self.like))
        return g.Unsqueeze(pairs, [0, 1], name="causal_bias")

    def masked(self, added: ir.Value | None) -> ir.Value | None:
        """Returns ``added`` combined with the mask, or None if there is neither."""
        g = self.g
        if added is not None:
            return g.Add(added, self.x["mask"], name="bias_and_mask")
        if self.spec.mask == "pairs":
            return self.x["mask"]
        return g.Expand(self.x["mask"], g.shape(self.queries(), [1]), name="mask_of_queries")

    def raw_scores(self) -> ir.Value:
        """Q K^T scaled, or what the base operator computes in its place."""
        if self.spec.base is not None:
            return self.g.Mul(self.operator("base"), self.scale(), name="scores")
        return self.product(self.scaled(self.x["q"]), self.transposed_keys(), "scores")

    def biased(self, scores: ir.Value) -> ir.Value:
        """Scaled scores with all that is added but the mask."""
        g = self.g
        if self.spec.bias != "none":
            return g.Add(scores, self.x["bias"], name="biased_scores")
        if self.spec.scores is not None:
            scores = g.Add(scores, self.own_bias(), name="biased_scores")
        return g.Where(self.later(), self.lowest(), scores, name="causal_scores") if self.spec.causal else scores

    def probabilities(self, scores: ir.Value) -> ir.Value:
        """P from the scores with everything added but the mask."""
        if not self._has_mask():
            return self.softmax(scores)

        def masked() -> ir.Value:
            return self.softmax(self.g.Add(scores, self.x["mask"], name="masked_scores"))

        return self.where_mask_drops(masked, lambda: self.softmax(scores), "probs")

    def where_mask_drops(self, masked: Callable[[], ir.Value], unmasked: Callable[[], ir.Value], name: str) -> ir.Value:
        """``masked``, or ``unmasked`` where the mask is known to drop nothing when the graph runs."""
        if self.mask_drops is None:
            return masked()
        branches = (f"then_{name}", f"else_{name}")
        return self.g.if_(self.mask_drops, masked, unmasked, branches=branches, name=name)

    def softmax(self, scores: ir.Value) -> ir.Value:
        """P [B, H, T, S] from S; a sink takes part as a key without a value."""
        g = self.g
        if not self.spec.sink:
            return g.Softmax(scores, axis=-1, name="probs")
        column = g.Expand(g.Reshape(self.x["sink"], [1, -1, 1, 1]), g.shape(g.Shape(scores, start=0, end=3), [1]))
        both = g.Softmax(g.Concat(scores, column, axis=-1), axis=-1)
        return g.slice(both, [0], [-1], -1, name="probs")

    def output(self, probs: ir.Value) -> ir.Value:
        """O = P V, and what the value operator adds."""
        output = self.product(probs, self.x["v"], "output")
        return output if self.spec.values is None else self.g.Add(output, self.operator("values", probs=probs))

    def by_products(self) -> ir.Value:
        """O by products, sums and a softmax."""
        return self.output(self.probabilities(self.biased(self.raw_scores())))

    def by_operator(self) -> ir.Value:
        """O by ai.onnx Attention (opset 23), for what `operator_refusal` accepts.

        ONNX Runtime's kernel starts the product of queries and keys from the bias, which then costs no pass.
        """
        if self.mask_drops is None or not self._has_mask():
            return self.operator_with(self.bias())
        added = self.unmasked_bias()
        return self.where_mask_drops(
            lambda: self.operator_with(self.masked(added)), lambda: self.operator_with(added), "output"
        )

    def operator_with(self, added: ir.Value | None) -> ir.Value:
        """Computes attention with the bias by one operator, as `by_operator`."""
        g = self.g
        counts = {"q_num_heads": g.attribute("heads", int), "kv_num_heads": g.attribute("kv_heads", int)}
        inputs = [self.x[name] for name in "qkv"] + ([] if added is None else [added])
        scale = g.attribute("scale", float)
        return g.Attention(*inputs, scale=scale, **(counts if self.spec.packed else {}), name="output")


def drops_any(g: Builder, mask: ir.Value) -> ir.Value:
    """Whether a mask drops any key, bool []."""
    return g.Cast(g.ReduceMin(mask, keepdims=0), to=ir.DataType.BOOL.value, name="mask_drops")


def cache_refusal(spec: AttentionSpec) -> str | None:
    """Why a lowering that knows nothing of static KV caches does not apply; None where it does."""
    return None if spec.cache == "none" else "keys and values are in a static KV cache, some slots of which are unused"


def operator_refusal(spec: AttentionSpec) -> str | None:
    """Why no operator that computes attention as a whole applies; None where one does."""
    if spec.base is not None:
        return f"{spec.base} replaces the product of queries and keys"
    if spec.values is not None:
        return f"{spec.values} needs the probabilities"
    return "a sink has no key" if spec.sink else None

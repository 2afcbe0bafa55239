"""Recognises attention that a module computes with MatMul and Softmax, and writes attention nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.refusal import Refusal
from posexport.graph.builder import Builder, Operand
from posexport.graph.edits import replace
from posexport.graph.ops.attention import AttentionSpec, Mask
from posexport.graph.ops.clipped_scores import CLIPPED_SCORES
from posexport.graph.ops.dropped_scores import LOWEST
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise import content_bias, content_values, skewed_tables
from posexport.graph.passes.recognise.layouts import put_in_order
from posexport.graph.passes.recognise.recognition import Recognition, share_equal_nodes
from posexport.graph.passes.recognise.scores import Scores, before_scale, decomposed
from posexport.graph.passes.recognise.without_keys import replaces_nan, with_guard, without_guards, zero_context
from posexport.graph.queries import axis, only, producer, sizes

#: score of a masked key: half of the lowest float32, as `posexport.nn.attention.dropped_score` has it
_NO_PRODUCT = "its scores are no product of queries and keys, masked and scaled by constants"
_NO_HEADS = "its queries, keys and values are not [B, H, T, D] with the heads and their size known"
_TWO_MASKS = "NaN of its probabilities are replaced, and a mask that fills in a number is one of several"
_MIXED = "a linear layer mixes the probabilities of its heads (talking heads), so that no head is attention by itself"
_NOT_PLAIN = Refusal(
    "what is added to its scores reads queries or keys, and their product is more than scaled by a constant"
)


@dataclass(frozen=True)
class _Terms:
    """What the node adds to its scores and its context, and its heads: of queries, of keys and values, their size."""

    scores: content_bias.Content | None
    values: content_values.Values | None
    heads: int
    kv_heads: int
    head_size: int


class AttentionByHand(Recognition):
    """One attention node from a Softmax, the product before it and the product after it.

    Before: ``Softmax(scale * MatMul(q, Transpose(k)) + mask) -> MatMul(.., v)``
    After:  ``posexport::Attention(q, k, v, mask)``

    From the Softmax back to the product, every node must be one of these:

    1. Mul or Div by a positive constant: a scale, also of q or of k^T before the product.
    2. Add or Sub of a value that broadcasts to all scores: a mask.
    3. Where with a constant that masks the score: a mask.
    4. Add of a value that depends on queries or keys: a score operator (`content_bias`), if posexport has it; else
       a mask as in rule 2.
    5. Tanh of the scaled product alone: a soft cap, an operator in place of q k^T.
    6. Mul or Div by a factor [.., H or 1, T or 1, 1] of the product or the cap alone: q is multiplied by it.
    7. Reshape from [B * H, T, S] to [B, H, T, S], and back, or none where Q, K and V are reshaped so: heads in the
       batch.

    From the Softmax on, the probabilities may be read twice:

    8. By the product with v, and by a product with a table that is added to the first: a value operator
       (`content_values`).
    9. By what replaces NaN, of queries without keys, by zeros (`without_keys`).

    The node computes the same sum. Not rewritten: scores that are not [B, H, T, S] with known H and D, as `layouts`
    makes them of others. Other scores of three axes are one head. Keys and values of one head, [B, 1, ..], are shared
    by all; `repeated_heads` handles other grouped-query attention.
    """

    name = "recognised-attention"
    description = "products around a Softmax, and what calls PyTorch's attention, as attention nodes"
    # apply() shares equal nodes of the layers itself
    writes_copies = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes, including those of the trace."""
        reasons: list[str | None] = []
        contents = content_bias.Contents(model)
        for softmax in _softmaxes(model):
            without_guards(softmax)
        RemoveUnusedNodesPass()(model)
        for softmax in _softmaxes(model):
            put_in_order(softmax)
        RemoveUnusedNodesPass()(model)
        for softmax in _softmaxes(model):
            probs, values = softmax.outputs[0], None
            joined = _joined(probs)
            product = next((user for user, index in joined.uses() if user.op_type == "MatMul" and index == 0), None)
            if product is None:
                reasons += [_MIXED] if _mixes_heads(probs) else []
                continue
            if only(joined) is None:  # rule 8
                recognised = content_values.recognised(contents, probs, product)
                if isinstance(recognised, Refusal):
                    reasons.append(recognised.reason)
                    continue
                values = recognised
            reasons += _refusals_or_change(softmax, product, contents, values)
        RemoveUnusedNodesPass()(model)
        for softmax in _softmaxes(model):
            with_guard(softmax)
        by_hand, traced = PassResult.of(reasons), context.traced_attention or PassResult()
        if by_hand.nodes:
            share_equal_nodes(model)
        return PassResult(traced.nodes + by_hand.nodes, (*traced.rejected, *by_hand.rejected))


def _softmaxes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Softmax" and not node.domain]


def _mixes_heads(probs: ir.Value) -> bool:
    """Whether a linear layer reads the probabilities [B, H, T, S] as [B, T, S, H], as in CaiT."""
    moved = only(probs)
    node = None if moved is None or moved.op_type != "Transpose" else only(moved.outputs[0])
    heads = (sizes(probs) or (0, 0))[1]
    return node is not None and node.op_type == "MatMul" and (sizes(node.inputs[1]) or ())[:1] == (heads,)


def _joined(probs: ir.Value) -> ir.Value:
    """Probabilities with heads in their batch, [B * H, T, S], where they are reshaped to that; else as they are."""
    node, shape = only(probs), sizes(probs) or ()
    if node is None or node.op_type != "Reshape" or node.domain:
        return probs
    joined = sizes(node.outputs[0]) or ()
    return node.outputs[0] if len(shape) == 4 and len(joined) == 3 and joined[1:] == shape[2:] else probs


def _refusals_or_change(
    softmax: ir.Node, output: ir.Node, contents: content_bias.Contents, values: content_values.Values | None
) -> list[str | None]:
    """Write an attention node.

    Returns:
        None if it was written, with the reason if a content bias became a mask; else the reason why it was not.
    """
    # rules 1 to 7: decompose the scores
    scores = decomposed(softmax.inputs[0])
    shape = sizes(softmax.outputs[0])
    of_product = sizes(None if scores.product is None else scores.product.outputs[0])
    if scores.product is None or of_product is None:
        return [_NO_PRODUCT]
    if shape is None or len(shape) not in (3, 4) or axis(softmax, -1) != -1:
        return ["its scores are not [B, H, T, S]"]
    (q, of_q), (k, of_k), v = *(before_scale(value) for value in scores.product.inputs), output.inputs[1]
    # shapes of Q, K and V, the latter as the other two where their heads are in the batch
    of_v = sizes(v)
    if scores.apart is not None and of_v is not None and of_v[:2] == scores.apart[:2] and len(of_v) == 4:
        of_v = (of_product[0], *of_v[2:])
    known = [_with_heads(shape) for shape in (sizes(q), sizes(k), of_v)]
    if (
        q is None
        or k is None
        or v is None
        or not _fit(known, _with_heads(of_product))
        or (scores.apart if scores.apart and len(shape) == 4 else of_product)[:-2] != shape[:-2]  # masks of more rows
        or (scores.apart is not None and len(of_product) == 4)
    ):
        return [_NO_HEADS]
    scores.find_heads(shape, q, k, v)
    shape = scores.apart or shape
    # biases that depend on Q or K, and masks
    scores.scale *= of_q * of_k
    grouped = (known[1] or ())[1] != (known[0] or ())[1]
    content = _content(scores, contents, q, k, grouped=grouped)
    if isinstance(content, Refusal) and any(bias.by != 1 for bias in scores.added):
        return [content.reason]
    if not all(_added_to_all(scores.shape(value), shape) for value in scores.masks):
        return ["what is added to its scores is not [B or 1, H or 1, T or 1, S]"]
    if replaces_nan(softmax) and scores.is_filled_with_numbers and len(scores.masks) > 1:
        return [_TWO_MASKS]
    heads, size = (int(n) for n in (known[0] or ())[1::2])
    term = None if isinstance(content, Refusal) else content
    if values is not None:  # the node returns the sum
        ir.convenience.replace_all_uses_with(values.sum, values.context, replace_graph_outputs=True)
    terms = _Terms(term, values, scores.heads or heads, 1 if grouped else scores.heads or heads, size)
    context = _put_node(scores, (q, k, v), terms, output)
    if replaces_nan(softmax) and (sees_none := _sees_none(Builder.at(_node(context)), scores)) is not None:
        zero_context(context, sees_none)
    return [None, content.reason] if isinstance(content, Refusal) else [None]


def _content(
    scores: Scores, contents: content_bias.Contents, q: ir.Value, k: ir.Value, *, grouped: bool
) -> content_bias.Content | Refusal | None:
    """The score operator of the biases that depend on queries or keys, which are then removed from ``scores.added``.

    A reason if there is no operator for them; None without such biases.
    """
    roots = [content_bias.root(x) for x in (q, k)]
    by_content = [bias for bias in scores.added if content_bias.reads(bias.value, *roots)]
    if not by_content:
        return None
    content: content_bias.Content | Refusal = _NOT_PLAIN
    if scores.is_product:
        table = skewed_tables.of_scores(contents.model, [(x.value, x.by) for x in by_content], q, roots, scores.scale)
        content = _NOT_PLAIN if table is None else content_bias.Content(CLIPPED_SCORES, table)
    if isinstance(content, Refusal) and scores.is_plain and not grouped:
        content = contents.recognised(by_content, q, k, scores.scale)
    if not isinstance(content, Refusal):
        scores.added = [bias for bias in scores.added if bias not in by_content]
    return content


def _put_node(scores: Scores, inputs: tuple[ir.Value, ir.Value, ir.Value], terms: _Terms, output: ir.Node) -> ir.Value:
    """Replace ``output``, the product of P and V, by an attention node; returns its context [B, H, T, D]."""
    # inputs: [B, H, T, D], the factors of queries, the mask, tables and positions of operators
    g, rank = Builder.at(output), len(sizes(output.outputs[0]) or ())
    q, k, v = (scores.split(g, x) for x in (inputs[0], _transposed(g, inputs[1]), inputs[2]))
    for op_type, factor in scores.of_queries:
        q = g.op(op_type, q, scores.split(g, factor) if factor in scores.in_batch else factor, shape=q.shape)
    q, k, v = (_four_axes(g, x, len(sizes(x) or ())) for x in (q, k, v))
    mask, kind = _mask(g, scores, q)
    of_scores, of_values = (None if term is None else term.operator.name for term in (terms.scores, terms.values))
    base = None if scores.after_cap is None else "SoftCapScores"
    grouped = terms.kv_heads != terms.heads
    spec = AttentionSpec(
        mask=kind, head_size=terms.head_size, scores=of_scores, values=of_values, base=base, grouped=grouped
    )
    tensors: dict[str, Operand] = {"q": q, "k": k, "v": v, "mask": mask}
    for hook, term in (("scores", terms.scores), ("values", terms.values)):
        tensors |= {f"{hook}_table": term.table} if term else {}
    if base:
        tensors["base_cap"] = np.asarray([1 / scores.scale], np.float32)
    if spec.ordered:
        tensors |= {name: content_bias.counted(x, output) for name, x in (("qpos", q), ("kpos", k))}
    counts = {"heads": terms.heads, "kv_heads": terms.kv_heads}
    scale = scores.scale if scores.after_cap is None else scores.scale * scores.after_cap
    attributes = {**spec.attributes, "scale": scale, "lowest": LOWEST, **counts}
    # the node, with the shape of the product
    result = output.outputs[0]
    context = g.op(
        spec.op_type,
        *(tensors[name] for name in spec.inputs),
        domain=DOMAIN,
        name=f"{result.name}_of_heads",
        shape=[(sizes(q) or ())[0], terms.heads, *(sizes(result) or ())[-2:]],
        **attributes,
    )
    context.type = result.type
    if scores.apart is not None and rank == 3:
        _put_joined(g, context, result)
    else:
        replace(result, context if rank == 4 else g.Squeeze(context, [1]))
    assert output.graph is not None
    output.graph.remove(output, safe=True)
    return context


def _node(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _put_joined(g: Builder, context: ir.Value, result: ir.Value) -> None:
    """Replace a product ``result`` [B * H, T, D] by the context [B, H, T, D]; reshapes to that are left out."""
    expected = (sizes(context) or ())[1:]
    for user, _ in tuple(result.uses()):
        if user.op_type == "Reshape" and (sizes(user.outputs[0]) or ())[1:] == expected:
            context.shape = user.outputs[0].shape
            ir.convenience.replace_all_uses_with(user.outputs[0], context, replace_graph_outputs=True)
    joined = g.shape([-1], g.size(context, 2), g.size(context, 3))
    replace(result, g.Reshape(context, joined))


def _with_heads(shape: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
    """The shape as [B, H, T, D]; three axes, as in ``torch.bmm``, are one head."""
    return (shape[0], 1, *shape[1:]) if shape is not None and len(shape) == 3 else shape


def _fit(known: Sequence[tuple[int | str, ...] | None], scores: tuple[int | str, ...] | None) -> bool:
    """Whether q is [B, H, T, D], k [B, H or 1, D, S] and v [B, H or 1, S, V] of ``scores`` [B, H, T, S]."""
    q, k, v = known
    if not q or not k or not v or not scores or not all(len(shape) == 4 for shape in (q, k, v)):
        return False
    fit = q[:2] == scores[:2] and k[:2] == v[:2] and k[:2] in (q[:2], (q[0], 1)) and q[3] == k[2]
    return fit and isinstance(q[1], int) and isinstance(q[3], int) and k[3] == v[2]


def _added_to_all(shape: tuple[int | str, ...] | None, scores: tuple[int | str, ...]) -> bool:
    """Whether a mask of ``shape`` is added to all ``scores``; symbolic sizes count as equal."""
    if shape is None or len(shape) > len(scores):
        return False
    shape, scores = _with_heads((1,) * (len(scores) - len(shape)) + shape) or (), _with_heads(scores) or ()
    pairs = [(size, full) for size, full in zip(shape, scores, strict=True) if size != 1]
    return all(size == full or isinstance(size, str) for size, full in pairs) and shape[3] != 1


def _transposed(g: Builder, k: ir.Value) -> ir.Value:
    """K [B, H, S, D] from its transpose [B, H, D, S]."""
    transposed = producer(k, "Transpose")
    permutation = list(transposed.attributes.get_ints("perm") or ()) if transposed is not None else []
    source = transposed.inputs[0] if permutation and transposed is not None else k
    assert source is not None
    permutation = permutation or list(range(len(sizes(k) or ())))
    permutation[-2:] = permutation[:-3:-1]
    return source if permutation == sorted(permutation) else g.Transpose(source, perm=permutation)


def _mask(g: Builder, scores: Scores, q: ir.Value) -> tuple[ir.Value | None, Mask]:
    """The sum of all masks and biases, and its kind; ``q``: [B, H, T, D]."""
    total = _total(g, scores, LOWEST)
    if total is None:
        return None, "none"
    # without an axis of queries: keys of every row, or repeated for the queries
    batch, heads, queries, keys = sizes(total) or ()
    if queries != 1 or (heads == 1 and batch != 1):
        return total, "pairs" if queries != 1 else "keys"
    if heads == 1:
        rows = (sizes(q) or ())[0]
        return g.op("Expand", total, g.shape(g.size(q, 0), [1], [1], [1]), shape=[rows, 1, 1, keys]), "keys"
    repeated = g.shape([1], [1], g.size(q, 2), [1])
    return g.op("Expand", total, repeated, shape=[batch, heads, (sizes(q) or ())[2], keys]), "pairs"


def _total(g: Builder, scores: Scores, least: float) -> ir.Value | None:
    """The sum of all masks and biases, each at least ``least``, of four axes; None where there are none."""
    dtype = (None if scores.product is None else scores.product.outputs[0].dtype) or ir.DataType.FLOAT
    lowest, zero = (np.asarray(number, dtype.numpy()) for number in (least, 0))
    added = [(bias.value if bias.by == 1 else g.Mul(bias.value, bias.by), bias.value) for bias in scores.added]
    parts = [(x if least == -math.inf else g.Max(x, lowest), of) for x, of in added]
    parts += [
        (g.Where(condition, zero, lowest) if keeps else g.Where(condition, lowest, zero), condition)
        for condition, keeps, _ in scores.fills
    ]
    if not parts:
        return None
    total, *rest = (_four_axes(g, scores.split(g, x) if of in scores.in_batch else x, scores.rank) for x, of in parts)
    for other in rest:
        broadcast = [b if a == 1 else a for a, b in zip(sizes(total) or (), sizes(other) or (), strict=True)]
        total = g.op("Add", total, other, shape=broadcast)
    return total


def _sees_none(g: Builder, scores: Scores) -> ir.Value | None:
    """Whether all scores of a query are -inf, [B or 1, H or 1, T or 1, 1]; None where no score is."""
    total = None if scores.is_filled_with_numbers else _total(g, scores, -math.inf)
    if total is None:
        return None
    return g.op("Equal", g.ReduceMax(total, [-1]), -math.inf, shape=[*(sizes(total) or ())[:3], 1])


def _four_axes(g: Builder, value: ir.Value, rank: int) -> ir.Value:
    """Unsqueeze a value of scores with ``rank`` axes to four axes; three axes are one head."""
    missing = list(range(rank - len(sizes(value) or ())))
    if rank == 3:
        missing.append(max(1, len(missing)))
    return g.Unsqueeze(value, missing) if missing else value

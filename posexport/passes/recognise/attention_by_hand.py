"""Recognises attention that a module computes with MatMul and Softmax, and writes attention nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.queries import axis, number, only, producer, sizes
from posexport.ops.attention import AttentionSpec, Mask
from posexport.ops.dropped_scores import drops
from posexport.ops.operator import DOMAIN
from posexport.passes.graph_pass import Context, PassResult
from posexport.passes.recognise import content_bias, content_values
from posexport.passes.recognise.recognition import Recognition, share_equal_nodes

#: score of a masked key: half of the lowest float32, as `posexport.nn.attention.dropped_score` has it
_LOWEST = float(np.finfo(np.float32).min) / 2
_NO_PRODUCT = "its scores are no product of queries and keys, masked and scaled by constants"


@dataclass
class _Scores:
    """The scores that a Softmax reads, decomposed into the product of Q and K, scales, masks and biases."""

    product: ir.Node | None = None
    scale: float = 1.0
    #: added biases and masks with the scale that is applied after the sum, the last one first
    added: list[content_bias.Scaled] = field(default_factory=list)
    #: masks by Where: (condition, whether True keeps the key)
    fills: list[tuple[ir.Value, bool]] = field(default_factory=list)


class AttentionByHand(Recognition):
    """One attention node from a Softmax, the product before it and the product after it.

    Before: ``Softmax(scale * MatMul(q, Transpose(k)) + mask) -> MatMul(.., v)``
    After:  ``posexport::Attention(q, k, v, mask)``

    From the Softmax back to the product, every node must be one of these:

    1. Mul or Div by a positive constant: a scale, also of q or of k^T before the product.
    2. Add of a value that broadcasts to all scores, [B, 1, 1, S] or [B or 1, H or 1, T, S]: a mask.
    3. Where with a constant that masks the score: a mask.
    4. Add of a value that depends on queries or keys: a score operator (`content_bias`), if posexport has it; else
       a mask as in rule 2.

    From the Softmax on, the probabilities may be read twice:

    5. By the product with v, and by a product with a table that is added to the first: a value operator
       (`content_values`).

    The node computes the same sum. Not rewritten: scores that are not [B, H, T, S] with known H and D. Three axes, as
    in ``torch.bmm``, are one head. `repeated_heads` handles grouped-query attention.
    """

    name = "recognised-attention"
    description = "products around a Softmax, and what calls PyTorch's attention, as attention nodes"
    # apply() shares equal nodes of the layers itself
    writes_copies = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes, including those of the trace."""
        reasons: list[str | None] = []
        contents = content_bias.Contents(model)
        for softmax in [node for node in model.graph if node.op_type == "Softmax" and not node.domain]:
            probs, values = softmax.outputs[0], None
            product = next((user for user, index in probs.uses() if user.op_type == "MatMul" and index == 0), None)
            if product is None:
                continue
            if only(probs) is None:  # rule 5
                recognised = content_values.recognised(contents, probs, product)
                if isinstance(recognised, str):
                    reasons.append(recognised)
                    continue
                values = recognised
            reasons += _refusals_or_change(softmax, product, contents, values)
        by_hand, traced = PassResult.of(reasons), context.traced_attention or PassResult()
        if by_hand.nodes:
            share_equal_nodes(model)
        return PassResult(traced.nodes + by_hand.nodes, (*traced.rejected, *by_hand.rejected))


def _refusals_or_change(
    softmax: ir.Node, output: ir.Node, contents: content_bias.Contents, values: content_values.Values | None
) -> list[str | None]:
    """Write an attention node.

    Returns:
        None if it was written, with the reason if a content bias became a mask; else the reason why it was not.
    """
    # rules 1 to 4: decompose the scores
    scores = _scores(softmax.inputs[0])
    shape = sizes(softmax.outputs[0])
    if scores.product is None:
        return [_NO_PRODUCT]
    if shape is None or len(shape) not in (3, 4) or axis(softmax, -1) != -1:
        return ["its scores are not [B, H, T, S]"]
    (q, of_q), (k, of_k), v = *(_before_scale(value) for value in scores.product.inputs), output.inputs[1]
    # shapes of Q, K and V
    known = [_with_heads(sizes(value)) for value in (q, k, v)]
    if q is None or k is None or v is None or not _fit(known, _with_heads(shape)):
        return ["its queries, keys and values are not [B, H, T, D] with the heads and their size known"]
    # biases that depend on Q or K, and masks
    scale = scores.scale * of_q * of_k
    content = _content(scores, contents, q, k, scale)
    if isinstance(content, str) and any(bias.by != 1 for bias in scores.added):
        return [content]
    masks = [*(bias.value for bias in scores.added), *(condition for condition, _ in scores.fills)]
    if not all(_added_to_all(value, shape) for value in masks):
        return ["what is added to its scores is not [B, 1, 1, S] or [B or 1, H or 1, T, S]"]
    heads, size = (int(n) for n in (known[0] or ())[1::2])
    term = None if isinstance(content, str) else content
    if values is not None:  # the node returns the sum
        ir.convenience.replace_all_uses_with(values.sum, values.context, replace_graph_outputs=True)
    _put_node(scores, {"q": q, "k": k, "v": v}, (term, values), (heads, size), scale, output)
    return [None, content] if isinstance(content, str) else [None]


def _content(
    scores: _Scores, contents: content_bias.Contents, q: ir.Value, k: ir.Value, scale: float
) -> content_bias.Content | str | None:
    """The score operator of the biases that depend on queries or keys, which are then removed from ``scores.added``.

    A reason if there is no operator for them; None without such biases.
    """
    roots = [content_bias.root(x) for x in (q, k)]
    by_content = [bias for bias in scores.added if content_bias.reads(bias.value, *roots)]
    if not by_content:
        return None
    content = contents.recognised(by_content, q, k, scale)
    if not isinstance(content, str):
        scores.added = [bias for bias in scores.added if bias not in by_content]
    return content


def _put_node(
    scores: _Scores,
    inputs: Mapping[str, ir.Value],
    terms: tuple[content_bias.Content | None, content_values.Values | None],
    heads: tuple[int, int],
    scale: float,
    output: ir.Node,
) -> None:
    """Replace ``output``, the product of P and V, by an attention node; ``heads``: number and size of heads."""
    # inputs: [B, H, T, D], the mask, tables and positions of operators
    g, rank = Builder.at(output), len(sizes(output.outputs[0]) or ())
    inputs = {**inputs, "k": _transposed(g, inputs["k"])}
    values: dict[str, ir.Value | None] = {name: _four_axes(g, value, rank) for name, value in inputs.items()}
    values["mask"], kind = _mask(g, scores, rank)
    of_scores, of_values = (None if term is None else term.operator.name for term in terms)
    spec = AttentionSpec(mask=kind, head_size=heads[1], scores=of_scores, values=of_values)
    values |= {f"{name}_table": term.table for name, term in zip(("scores", "values"), terms, strict=True) if term}
    if spec.ordered:
        values |= {name: content_bias.counted(inputs[of], output) for name, of in (("qpos", "q"), ("kpos", "k"))}
    counts = {"heads": heads[0], "kv_heads": heads[0]}
    attributes = {**spec.attributes, "scale": scale, "lowest": _LOWEST, **counts}
    # the node, with the shape of the product
    result = output.outputs[0]
    batch, *_, queries, channels = sizes(result) or ()
    context = g.op(
        spec.op_type,
        *(values[name] for name in spec.inputs),
        domain=DOMAIN,
        name=f"{result.name}_of_heads",
        shape=[batch, heads[0], queries, channels],
        **attributes,
    )
    context.type = result.type
    replace(result, context if rank == 4 else g.Squeeze(context, [1]))
    assert output.graph is not None
    output.graph.remove(output, safe=True)


def _with_heads(shape: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
    """The shape as [B, H, T, D]; three axes, as in ``torch.bmm``, are one head."""
    return (shape[0], 1, *shape[1:]) if shape is not None and len(shape) == 3 else shape


def _scores(value: ir.Value | None) -> _Scores:
    """Decompose the scores ``value``; ``product`` is None if they are no supported sum."""
    total = _Scores()
    while value is not None:
        node = value.producer()
        if node is None or node.domain or only(value) is None:
            return _Scores()
        if node.op_type == "MatMul":
            total.product = node
            return total
        value = _step(node, total)
    return _Scores()


def _step(node: ir.Node, total: _Scores) -> ir.Value | None:
    """Add ``node`` to ``total`` and return the scores before it; None if the node matches no rule."""
    if node.op_type in ("Mul", "Div"):  # rule 1
        return _scaled_by(node, total)
    if node.op_type == "Add":  # rules 2 and 4
        first, second = node.inputs
        scores, added = (first, second) if _reaches_product(first) else (second, first)
        if scores is None or added is None or not _reaches_product(scores):
            return None
        total.added.append(content_bias.Scaled(added, total.scale))
        return scores
    return _filled(node, total) if node.op_type == "Where" else None  # rule 3


def _scaled_by(node: ir.Node, total: _Scores) -> ir.Value | None:
    first, second = node.inputs
    by = number(second)
    if by is None and node.op_type == "Mul":
        first, by = second, number(first)
    if by is None or not math.isfinite(by) or by <= 0:
        return None
    total.scale *= by if node.op_type == "Mul" else 1 / by
    return first


def _filled(node: ir.Node, total: _Scores) -> ir.Value | None:
    condition, yes, no = node.inputs
    for keeps, fill, scores in ((False, number(yes), no), (True, number(no), yes)):
        if fill is not None and drops(fill) and condition is not None:
            total.fills.append((condition, keeps))
            return scores
    return None


def _reaches_product(value: ir.Value | None) -> bool:
    """Whether ``value`` is a product of scores, possibly scaled, masked and with biases added."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "MatMul":
        shape = sizes(node.outputs[0])
        return shape is not None and len(shape) in (3, 4)
    steps = {"Mul": (0, 1), "Div": (0,), "Add": (0, 1), "Where": (1, 2)}.get(node.op_type, ())
    return any(_reaches_product(node.inputs[index]) for index in steps)


def _before_scale(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """Queries or keys before a constant scale, and the scale."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return value, 1.0
    total = _Scores()
    before = _scaled_by(node, total)
    return (value, 1.0) if before is None else (before, total.scale)


def _fit(known: Sequence[tuple[int | str, ...] | None], scores: tuple[int | str, ...] | None) -> bool:
    """Whether q is [B, H, T, D], k [B, H, D, S] and v [B, H, S, V] of ``scores`` [B, H, T, S]."""
    q, k, v = known
    if not q or not k or not v or not scores or not all(len(shape) == 4 for shape in (q, k, v)):
        return False
    fit = q[:2] == k[:2] == v[:2] == scores[:2] and q[3] == k[2]
    return fit and isinstance(q[1], int) and isinstance(q[3], int) and k[3] == v[2]


def _added_to_all(mask: ir.Value, scores: tuple[int | str, ...]) -> bool:
    """Whether ``mask`` has a shape of `AttentionSpec`'s masks of ``scores``; symbolic sizes count as equal."""
    shape = sizes(mask)
    if shape is None or len(shape) > len(scores):
        return False
    shape, scores = _with_heads((1,) * (len(scores) - len(shape)) + shape) or (), _with_heads(scores) or ()
    pairs = [(size, full) for size, full in zip(shape, scores, strict=True) if size != 1]
    fits = all(size == full or isinstance(size, str) for size, full in pairs)
    batch, heads, queries, keys = shape
    return fits and keys != 1 and (queries != 1 or (heads == 1 and batch != 1))


def _transposed(g: Builder, k: ir.Value) -> ir.Value:
    """K [B, H, S, D] from its transpose [B, H, D, S]."""
    transposed = producer(k, "Transpose")
    permutation = list(transposed.attributes.get_ints("perm") or ()) if transposed is not None else []
    source = transposed.inputs[0] if permutation and transposed is not None else k
    assert source is not None
    permutation = permutation or list(range(len(sizes(k) or ())))
    permutation[-2:] = permutation[:-3:-1]
    return source if permutation == sorted(permutation) else g.Transpose(source, perm=permutation)


def _mask(g: Builder, scores: _Scores, rank: int) -> tuple[ir.Value | None, Mask]:
    """The sum of all masks and biases, and its kind."""
    dtype = (None if scores.product is None else scores.product.outputs[0].dtype) or ir.DataType.FLOAT
    lowest, zero = (np.asarray(number, dtype.numpy()) for number in (_LOWEST, 0))
    parts = [g.Max(bias.value if bias.by == 1 else g.Mul(bias.value, bias.by), lowest) for bias in scores.added]
    parts += [
        g.Where(condition, zero, lowest) if keeps else g.Where(condition, lowest, zero)
        for condition, keeps in scores.fills
    ]
    if not parts:
        return None, "none"
    total, *rest = (_four_axes(g, mask, rank) for mask in parts)
    for other in rest:
        broadcast = [b if a == 1 else a for a, b in zip(sizes(total) or (), sizes(other) or (), strict=True)]
        total = g.op("Add", total, other, shape=broadcast)
    return total, "keys" if (sizes(total) or ())[2] == 1 else "pairs"


def _four_axes(g: Builder, value: ir.Value, rank: int) -> ir.Value:
    """Unsqueeze a value of scores with ``rank`` axes to four axes; three axes are one head."""
    missing = list(range(rank - len(sizes(value) or ())))
    if rank == 3:
        missing.append(max(1, len(missing)))
    return g.Unsqueeze(value, missing) if missing else value

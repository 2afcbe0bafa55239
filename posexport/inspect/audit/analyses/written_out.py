"""Attention of several nodes that one operator can compute: its queries, keys, values, scale and bias.

Precise enough to rewrite a graph: every node between the product and the Softmax is recognised, and the sizes of heads
are known.
Shape letters: B batch, H heads, T queries, S keys, D head size.
"""

import itertools
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.graph.queries import only, producer
from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.analyses.sizes import Size, Sizes

#: scores that are replaced by this value, or less, have a probability of 0
_DROPPED = -1e4
#: op types with an output that has the same heads as the first input
_KEEPS_HEADS = ("Mul", "Div", "Add", "Sub", "Cast", "Identity", "Concat")


class NotKnownError(Exception):
    """Attention that is not certain to be one operator; the message is the reason, as a clause."""


@dataclass
class WrittenOut:
    """One attention layer that consists of several nodes.

    Attributes:
        softmax, output: the Softmax, and the product of probabilities and values.
        q, k, v: split heads, [B, H, T, D], [B, H, D, S] and [B, H, S, D].
        heads, size, size_of_values: H, and D of queries and of values.
        scale: constant factor of the scores.
        factors: (op type, value): factors or divisors of all scores that are not constants.
        terms: the steps after scaling, in order: ("Add", bias, True), or ("Where", condition, whether True keeps a
            score).
        guarded: whether NaN probabilities are replaced by 0, for queries without keys.
    """

    softmax: ir.Node
    output: ir.Node
    q: ir.Value
    k: ir.Value
    v: ir.Value
    heads: int
    size: int
    size_of_values: int
    scale: float = 1.0
    factors: list[tuple[str, ir.Value]] = field(default_factory=list)
    terms: list[tuple[str, ir.Value, bool]] = field(default_factory=list)
    guarded: bool = False


def written_out(attention: Attention, sizes: Sizes) -> WrittenOut:
    """The parts of an attention layer.

    Raises:
        NotKnownError: a node or a size is not certain.
    """
    product, softmax = attention.product, attention.node
    if product is None or product.op_type != "MatMul" or softmax.op_type != "Softmax":
        raise NotKnownError("its products are no plain MatMul and Softmax")
    probs, guarded = _without_nan(softmax.outputs[0])
    output = only(probs)
    if output is None or output.op_type != "MatMul" or output.inputs[0] is not probs:
        raise NotKnownError("its probabilities are read by something else than the product with the values")
    q, k, v = product.inputs[0], product.inputs[1], output.inputs[1]
    if q is None or k is None or v is None or softmax.attributes.get_int("axis", -1) not in (-1, 3):
        raise NotKnownError("its Softmax is not over keys")
    of_q, of_k, of_v = heads_of(q, sizes), heads_of(k, sizes, transposed=True), heads_of(v, sizes)
    if of_q is None or of_v is None or of_q != of_k or of_q[0] != of_v[0]:
        raise NotKnownError("its queries, keys and values are not [B, H, T, D] with the heads and their size known")
    scores = sizes_of(sizes, product.outputs[0])
    pieces = WrittenOut(softmax, output, q, k, v, heads=of_q[0], size=of_q[1], size_of_values=of_v[1], guarded=guarded)
    pieces.q, of_queries = _unscaled(q)
    pieces.k, of_keys = _unscaled(k)
    pieces.scale = of_queries * of_keys
    for before, after in _steps(attention):
        _add_step(pieces, before, after, sizes, scores)
    return pieces


def sizes_of(sizes: Sizes, value: ir.Value | None) -> tuple[Size, ...] | None:
    """The shape of ``value``, with sizes that are digits as integers: some are elements of computed shapes."""
    known = sizes.of(value)
    return None if known is None else tuple(int(n) if isinstance(n, str) and n.isdigit() else n for n in known)


def _without_nan(probs: ir.Value) -> tuple[ir.Value, bool]:
    """The probabilities after ``Where(IsNaN(probs), 0, probs)``, and whether the graph has these nodes."""
    where = next((user for user, index in probs.uses() if user.op_type == "Where" and index == 2), None)
    test = None if where is None else producer(where.inputs[0], "IsNaN")
    if where is None or test is None or test.inputs[0] is not probs or len(probs.uses()) > 2:
        return probs, False
    return (where.outputs[0], True) if element(where.inputs[1], lambda _: None) == 0 else (probs, False)


def heads_of(value: ir.Value, sizes: Sizes, *, transposed: bool = False) -> tuple[int, int] | None:
    """H and D of split heads [B, H, T, D], or of their transpose; None if they are unknown."""
    shape = sizes_of(sizes, value)
    node = value.producer()
    if shape is not None:
        if len(shape) != 4:
            return None
        heads, size = shape[1], shape[2 if transposed else 3]
    elif node is None or node.domain or not node.inputs or node.inputs[0] is None:
        return None
    elif node.op_type in _KEEPS_HEADS:  # scales, rotations, a cache in front of new keys
        return heads_of(node.inputs[0], sizes, transposed=transposed)
    elif transposed and node.op_type == "Transpose" and _order(node) == [0, 1, 3, 2]:
        return heads_of(node.inputs[0], sizes)
    else:
        reshape = producer(node.inputs[0], "Reshape")
        if node.op_type != "Transpose" or reshape is None:
            return None
        elements = _joined(reshape.inputs[1], sizes)
        if _order(node) != ([0, 2, 3, 1] if transposed else [0, 2, 1, 3]) or len(elements) != 4:
            return None
        heads, size = (number or 0 for number in elements[2:])
    return (heads, size) if isinstance(heads, int) and isinstance(size, int) and heads > 0 and size > 0 else None


def _order(transpose: ir.Node) -> list[int]:
    return list(transpose.attributes.get_ints("perm") or ())


def _joined(shape: ir.Value | None, sizes: Sizes) -> list[Size | None]:
    """The elements of a shape, None for unknown ones; for a Concat at least those that are constants."""
    node = producer(shape, "Concat")
    if (known := sizes.elements(shape)) is not None or node is None:
        return known or []
    parts = [sizes.constant(part, 1) for part in node.inputs]
    return [None if part is None else int(part.item()) for part in parts]


def _steps(attention: Attention) -> list[tuple[ir.Value, ir.Node]]:
    """(input scores, node) for every node from the product to the Softmax."""
    values = attention.scores[::-1]  # the product's output first
    steps = [(before, after.producer()) for before, after in itertools.pairwise(values)]
    return [(before, node) for before, node in steps if node is not None]


def _add_step(
    pieces: WrittenOut, before: ir.Value, node: ir.Node, sizes: Sizes, scores: tuple[Size, ...] | None
) -> None:
    """Record what one node between the product and the Softmax computes."""
    kind = node.op_type
    if before.uses() and len(before.uses()) > 1:
        raise NotKnownError("its scores are read by something else")
    if None not in (after := (scores, sizes_of(sizes, node.outputs[0]))) and after[0] != after[1]:
        raise NotKnownError("what is added to its scores has more rows or heads")
    if kind == "Identity":
        return
    other = next((value for value in node.inputs if value is not None and value is not before), None)
    if kind in ("Mul", "Div") and other is not None and (kind == "Mul" or node.inputs[0] is before):
        _add_scale(pieces, kind, other, sizes)
    elif kind == "Add" and other is not None:
        _check_rank(other, sizes)
        pieces.terms.append(("Add", other, True))
    elif kind == "Where" and node.inputs[0] is not None:
        place = node.inputs.index(before)
        fill = element(node.inputs[3 - place], lambda _: None)
        if fill is None or fill > _DROPPED:
            raise NotKnownError("scores are replaced by something that is no large negative number")
        _check_rank(node.inputs[0], sizes)
        pieces.terms.append(("Where", node.inputs[0], place == 1))
    else:
        raise NotKnownError(f"its scores go through {kind}")


def _add_scale(pieces: WrittenOut, kind: str, factor: ir.Value, sizes: Sizes) -> None:
    """Record a factor or divisor of all scores."""
    number = element(factor, lambda _: None)
    if pieces.terms:
        raise NotKnownError("the sum of scores and mask is scaled")
    if number:
        pieces.scale *= number if kind == "Mul" else 1 / number
    elif sizes.of(factor) in ((), (1,)):
        pieces.factors.append((kind, factor))
    else:
        raise NotKnownError("its scores are scaled by something that differs between them")


def _check_rank(value: ir.Value, sizes: Sizes) -> None:
    """Raise NotKnownError if a term has no axis of keys; unknown sizes are left to the operator, which checks them."""
    shape = sizes.of(value)
    if shape is not None and (len(shape) > 4 or (shape and shape[-1] == 1)):
        raise NotKnownError("what is added to its scores has no axis of keys")


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """Queries or keys before their multiplication by constants, and the product of these constants."""
    scale, node = 1.0, value.producer()
    while node is not None and node.op_type in ("Mul", "Div") and not node.domain and len(value.uses()) == 1:
        operands = [operand for operand in node.inputs if operand is not None]
        numbers = [element(operand, lambda _: None) for operand in operands]
        place = 0 if node.op_type == "Div" or numbers[1] is not None else 1
        number = numbers[1 - place]
        if not number or numbers[place] is not None:
            break
        scale *= number if node.op_type == "Mul" else 1 / number
        value = operands[place]
        node = value.producer()
    return value, scale

"""Decomposes the input of a Softmax into the product of Q and K, scales, a soft cap, masks and biases.

Shape letters: B batch, H heads, N = B * H, T queries, S keys.
"""

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.dropped_scores import drops
from posexport.graph.passes.recognise.content_bias import Scaled
from posexport.graph.queries import number, only, producer, sizes

#: operators that compute scores from scores, with the inputs that may be scores
_SCORES = {"Mul": (0, 1), "Div": (0,), "Add": (0, 1), "Sub": (0,), "Where": (1, 2), "Tanh": (0,), "Reshape": (0,)}


@dataclass
class Scores:
    """The parts of scores, the last one first.

    Attributes:
        product: the MatMul of queries and keys; None: the scores are another sum.
        scale: the constant that the product is multiplied by, in the tangent where there is a cap.
        added: masks and biases, each with the factor it is multiplied by: -1 where it is subtracted, and scales after
            the sum.
        fills: masks by Where: (condition, whether True keeps the key, the score of a masked key).
        after_cap: the constant that ``tanh(scale * product)`` is multiplied by; None without a tangent.
        of_queries: (operator, factor [.., T or 1, 1]): what multiplies or divides all scores of a query, of a head.
        apart: [B, H, T, S], which the product [N, T, S] is reshaped to; None where it has heads itself.
        in_batch: masks and biases of the former.
    """

    product: ir.Node | None = None
    scale: float = 1.0
    added: list[Scaled] = field(default_factory=list)
    fills: list[tuple[ir.Value, bool, float]] = field(default_factory=list)
    after_cap: float | None = None
    of_queries: list[tuple[str, ir.Value]] = field(default_factory=list)
    apart: tuple[int | str, ...] | None = None
    in_batch: set[ir.Value] = field(default_factory=set)

    @property
    def heads(self) -> int | None:
        """H where the product has heads in its batch."""
        return int(self.apart[1]) if self.apart else None

    @property
    def rank(self) -> int:
        """The number of axes of the scores that the Softmax reads."""
        shape = sizes(None if self.product is None else self.product.outputs[0])
        return len(self.apart or shape or ())

    @property
    def masks(self) -> list[ir.Value]:
        return [*(bias.value for bias in self.added), *(condition for condition, *_ in self.fills)]

    @property
    def is_product(self) -> bool:
        """Whether the masks and biases are added to the product of Q and K times a constant."""
        return self.after_cap is None and not self.of_queries

    @property
    def is_plain(self) -> bool:
        """Whether they are so, with heads apart."""
        return self.is_product and self.apart is None

    @property
    def is_filled_with_numbers(self) -> bool:
        """Whether a mask replaces scores by a number, not by -inf."""
        return any(fill > -math.inf for *_, fill in self.fills)

    def shape(self, mask: ir.Value) -> tuple[int | str, ...] | None:
        """The sizes of a mask or bias, with heads apart."""
        shape = sizes(mask)
        if shape is None or mask not in self.in_batch or len(shape) < 3:
            return shape
        return (1, 1, *shape[1:]) if shape[0] == 1 else (*(self.apart or ())[:2], *shape[1:])

    def find_heads(self, shape: tuple[int | str, ...], *inputs: ir.Value) -> None:
        """Note heads that are in the batch of Q, K and V and of the scores, [N, T, S] of ``shape``."""
        before = {(sizes(_unjoined(x)) or ())[:2] for x in inputs}
        if len(shape) != 3 or self.apart is not None or len(before) != 1:
            return
        (lead,) = before
        if len(lead) == 2 and isinstance(lead[1], int):
            self.apart = (*lead, *shape[1:])
            self.in_batch = {*self.masks, *(factor for _, factor in self.of_queries)}

    def split(self, g: Builder, x: ir.Value) -> ir.Value:
        """A value with heads in its batch, [N, .., ..], as [B, H, .., ..]."""
        shape = sizes(x) or ()
        if self.apart is None or len(shape) != 3:
            return x
        if shape[0] == 1:
            return g.Unsqueeze(x, [0])
        source = _unjoined(x)
        before = sizes(source) or ()
        if source is not None and len(before) == 4 and before[:2] == self.apart[:2] and before[2:] == shape[1:]:
            return source
        apart = g.shape([-1, int(self.apart[1])], g.size(x, 1), g.size(x, 2))
        return g.op("Reshape", x, apart, shape=[*self.apart[:2], *shape[1:]])


def _unjoined(x: ir.Value) -> ir.Value | None:
    """Queries, keys or values [B, H, .., ..] before a Reshape to [N, .., ..]; keys may be transposed after it."""
    joined = producer(x, "Reshape")
    if joined is None and (transposed := producer(x, "Transpose")) is not None:
        joined = producer(transposed.inputs[0], "Reshape")
    if joined is None:
        return None
    before, after = sizes(joined.inputs[0]) or (), sizes(joined.outputs[0]) or ()
    # the pixels of an image may be joined as well, [B, C, height, width] to [B, C, S]
    return joined.inputs[0] if len(before) == 4 and len(after) == 3 and before[2:] == after[1:] else None


def decomposed(value: ir.Value | None) -> Scores:
    """The parts of the scores ``value``."""
    total = Scores()
    while value is not None:
        node = value.producer()
        if node is None or node.domain or only(value) is None:
            return Scores()
        if node.op_type == "MatMul":
            total.product = node
            return total
        value = _step(node, total)
    return Scores()


def before_scale(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """Queries or keys before a constant scale, and the scale."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return value, 1.0
    total = Scores()
    before = _scaled_by(node, total)
    return (value, 1.0) if before is None else (before, total.scale)


def _step(node: ir.Node, total: Scores) -> ir.Value | None:
    """Add ``node`` to ``total`` and return the scores before it; None if the node matches no rule."""
    if node.op_type in ("Mul", "Div"):
        scaled = _scaled_by(node, total)
        return _scaled_by_query(node, total) if scaled is None else scaled
    # a term that is added before a cap or a factor is no mask of the node
    bare = total.after_cap is not None or total.of_queries
    if node.op_type in ("Add", "Sub") and not bare:
        return _sum(node, total)
    if node.op_type == "Where" and not bare:
        return _filled(node, total)
    if node.op_type == "Tanh" and not bare:
        total.after_cap, total.scale = total.scale, 1.0
        return node.inputs[0]
    return _apart(node, total) if node.op_type == "Reshape" else None


def _scaled_by(node: ir.Node, total: Scores) -> ir.Value | None:
    """The scores before a product with a positive constant."""
    first, second = node.inputs
    by = number(second)
    if by is None and node.op_type == "Mul":
        first, by = second, number(first)
    if by is None or not math.isfinite(by) or by <= 0:
        return None
    total.scale *= by if node.op_type == "Mul" else 1 / by
    return first


def _scaled_by_query(node: ir.Node, total: Scores) -> ir.Value | None:
    """The scores before a product with a factor [.., H or 1, T or 1, 1], which can multiply the queries instead."""
    scores, factor = node.inputs
    if node.op_type == "Mul" and not _reaches_product(scores):
        scores, factor = factor, scores
    shape, whole = sizes(factor), sizes(node.outputs[0])
    if scores is None or factor is None or shape is None or whole is None or sizes(scores) != whole:
        return None
    fits = len(shape) <= len(whole) and all(
        size == 1 or size == full for size, full in zip(shape[::-1], (1, *whole[-2::-1]), strict=False)
    )
    if not fits or not _reaches_product(scores) or (total.apart is not None and len(whole) == 3):
        return None
    total.of_queries.append((node.op_type, factor))
    return scores


def _sum(node: ir.Node, total: Scores) -> ir.Value | None:
    """The scores before a sum or a difference with a mask or bias."""
    first, second = node.inputs
    sign = -1.0 if node.op_type == "Sub" else 1.0
    scores, added = (first, second) if sign < 0 or _reaches_product(first) else (second, first)
    if scores is None or added is None or not _reaches_product(scores):
        return None
    total.added.append(Scaled(added, sign * total.scale))
    _note_heads(added, node, total)
    return scores


def _filled(node: ir.Node, total: Scores) -> ir.Value | None:
    """The scores before a Where that drops some."""
    condition, yes, no = node.inputs
    for keeps, fill, scores in ((False, number(yes), no), (True, number(no), yes)):
        if fill is not None and drops(fill) and condition is not None:
            total.fills.append((condition, keeps, fill))
            _note_heads(condition, node, total)
            return scores
    return None


def _note_heads(mask: ir.Value, node: ir.Node, total: Scores) -> None:
    if total.apart is not None and len(sizes(node.outputs[0]) or ()) == 3:
        total.in_batch.add(mask)


def _apart(node: ir.Node, total: Scores) -> ir.Value | None:
    """The scores [N, T, S] before a Reshape to [B, H, T, S], or the latter before one to the former."""
    before, after = sizes(node.inputs[0]) or (), sizes(node.outputs[0]) or ()
    if len(before) == 4 and len(after) == 3 and before[2:] == after[1:] and total.apart is None:
        total.in_batch = {*total.masks, *(factor for _, factor in total.of_queries)}
        total.apart = before
        return node.inputs[0] if isinstance(before[1], int) else None
    if len(before) != 3 or len(after) != 4 or before[1:] != after[2:] or not isinstance(after[1], int):
        return None
    if total.apart not in (None, after):
        return None
    total.apart = after
    return node.inputs[0]


def _reaches_product(value: ir.Value | None) -> bool:
    """Whether ``value`` is a product of scores, possibly scaled, capped, masked and with biases added."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return False
    if node.op_type == "MatMul":
        shape = sizes(node.outputs[0])
        return shape is not None and len(shape) in (3, 4)
    return any(_reaches_product(node.inputs[index]) for index in _SCORES.get(node.op_type, ()))

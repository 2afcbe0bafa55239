"""PX304: a mask of ones and zeros that is added to the scores as it is."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.dataflow import inputs
from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: a key with a score that is lower by this has at most 1 / 22,000 of another key's probability
_MASKED = 10.0


def _check(subject: Subject) -> Iterator[Place]:
    for attention in subject.attentions:
        for added in attention.added:
            mask, found = _mask(subject, added), elements(subject, added)
            if mask is None or found is None:
                continue
            token, padding = found
            yield Place(
                f"{mask.name!r} is added to the scores as {token:g} for a token and {padding:g} for padding: "
                "padding is not masked",
                [node for node in (added.producer(), attention.node) if node is not None],
            )


def elements(subject: Subject, added: ir.Value) -> tuple[float, float] | None:
    """What a mask of integers adds to the scores of a token and of padding; None if it masks padding."""
    mask = _mask(subject, added)
    if mask is None or added.dtype == ir.DataType.BOOL:
        return None
    token, padding = (element(added, lambda value, bit=bit: bit if value is mask else None) for bit in (1.0, 0.0))  # type: ignore[misc]
    if token is None or padding is None or abs(token - padding) > _MASKED:
        return None
    return token, padding


def _mask(subject: Subject, added: ir.Value) -> ir.Value | None:
    """The input with a padding mask of integers that a value is computed from."""
    reached = inputs(added)
    masks = (mask for mask in subject.roles.masks if mask.dtype is not None and not mask.dtype.is_floating_point())
    return next((mask for mask in masks if mask in reached), None)


RULE = Rule(
    code="PX304",
    name="unscaled-mask",
    severity="error",
    finds="a mask of ones and zeros is added to the attention scores",
    why="Padding gets a score lower by 1 and not by a large number, so every token attends to padding: outputs depend "
    "on how long the longest row of the batch is.",
    remedy="Add (1 - mask) * -1e9, or Where(mask, 0, -1e9), in place of the mask; exporters that take the mask as a "
    "bias expect this from the caller.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        unscaled (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
            => (float[B, H, T, D] y)
        <int64[2] axes = {1, 2}>
        {
            products = MatMul (q, k)
            keys = Unsqueeze (attention_mask, axes)
            bias = Cast <to = 1> (keys)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        scaled (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
            => (float[B, H, T, D] y)
        <int64[2] axes = {1, 2}, float one = {1.0}, float large = {-1000000000.0}>
        {
            products = MatMul (q, k)
            keys = Unsqueeze (attention_mask, axes)
            kept = Cast <to = 1> (keys)
            dropped = Sub (one, kept)
            bias = Mul (dropped, large)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
)

"""PX513: attention scores that are scaled by the head's size where config.json has another scale."""

from collections.abc import Iterator

from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.described import numeric, whole
from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.analyses.written_out import NotKnownError, written_out
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: relative difference of scales that are another scale, and of those that are one
_OTHER, _SAME = 1e-2, 1e-3


def _check(subject: Subject) -> Iterator[Place]:
    expected = _of_config(subject)
    usual = _of_heads(subject)
    if expected is None or usual is None or _near(expected[1], usual, _OTHER):
        return
    scales = [_scale(attention, subject, usual) for attention in subject.attentions]
    if not scales or not all(scale is not None and _near(scale, usual, _SAME) for scale in scales):
        return
    if _is_elsewhere(subject, expected[1], usual):
        return
    key, scale = expected
    yield Place(
        f"the scores of {len(scales)} attentions are scaled by {usual:.4g}, 1 / sqrt(head size), and config.json says "
        f"{scale:.4g} ({key})",
        [attention.node for attention in subject.attentions],
    )


def _of_config(subject: Subject) -> tuple[str, float] | None:
    """The key with the scale of scores (Gemma 2 and 3; Granite), and the scale; None of other models."""
    scalar = numeric(subject.config, "query_pre_attn_scalar")
    if scalar is not None:
        return f"query_pre_attn_scalar = {scalar:g}", scalar**-0.5
    multiplier = numeric(subject.config, "attention_multiplier")
    return None if multiplier is None else (f"attention_multiplier = {multiplier:g}", multiplier)


def _of_heads(subject: Subject) -> float | None:
    """1 / sqrt(head size) by config.json."""
    config = subject.config
    width, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    size = whole(config, "head_dim") or (width // heads if width and heads else None)
    return None if size is None else float(size) ** -0.5


def _scale(attention: Attention, subject: Subject, usual: float) -> float | None:
    """The constant factor of an attention's scores; None where it is not known."""
    if attention.fused:
        scale = attention.node.attributes.get_float("scale", 0.0)
        return scale or usual
    try:
        parts = written_out(attention, subject.sizes)
    except NotKnownError:
        return None
    return None if parts.factors else parts.scale


def _is_elsewhere(subject: Subject, expected: float, usual: float) -> bool:
    """Whether something is multiplied by the quotient of both scales, as queries in front of an operator may be."""
    for node in subject.nodes:
        if node.op_type in ("Mul", "Div") and not node.domain:
            numbers = [element(value, lambda _: None) for value in node.inputs]
            factor = expected / usual if node.op_type == "Mul" else usual / expected
            if any(number and _near(number, factor, _SAME) for number in numbers):
                return True
    return False


def _near(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * abs(b)


RULE = Rule(
    code="PX513",
    name="attention-scale",
    severity="error",
    finds="attention scores are scaled by 1 / sqrt(head size), and config.json has another scale",
    why="All probabilities are sharper or flatter than in training, in every layer: fluent text of lower quality.",
    remedy="Export with the scale of config.json (query_pre_attn_scalar, attention_multiplier), or set the attribute "
    "scale of the operators; posexport convert follows these keys.",
    check=_check,
    reads="folder",
    files={
        "config.json": '{"model_type": "gemma3_text", "query_pre_attn_scalar": 7, "head_dim": 4, "hidden_size": 8, '
        '"num_attention_heads": 2}'
    },
    bad="""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        by_size (int64[B, T] input_ids, float[B, T, 8] q, float[B, T, 8] k, float[B, T, 8] v) => (float[B, T, 8] y)
        { y = com.microsoft.MultiHeadAttention <num_heads = 2, scale = 0.5> (q, k, v) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        by_config (int64[B, T] input_ids, float[B, T, 8] q, float[B, T, 8] k, float[B, T, 8] v) => (float[B, T, 8] y)
        { y = com.microsoft.MultiHeadAttention <num_heads = 2, scale = 0.37796447> (q, k, v) }
    """,
)

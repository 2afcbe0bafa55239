"""PX303: masks of minus infinity where a row can have no key."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.graph.queries import SHAPES
from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.scalars import element, is_infinite
from posexport.inspect.audit.finding import Severity
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: a mask has no elements of these
_CONTENT = SHAPES | {"MatMul", "Gemm", "Conv", "Softmax", "Einsum"}
#: operators of masks that keep one key in every row: tests of whole rows, or the diagonal
_KEEPS_ONE = ("EyeLike", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceMean", "ArgMax", "TopK")
#: fused operators that return NaN for a row without keys; ONNX's Attention returns zeros (ONNX Runtime 1.32, CPU)
_UNGUARDED = (("com.microsoft", "MultiHeadAttention"), ("com.microsoft", "Attention"))
_ORDERS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _check(subject: Subject) -> Iterator[Place]:
    if not subject.roles.masks:
        return
    empty = [
        (attention, causal)
        for attention in subject.attentions
        if not _is_guarded(attention) and (causal := _masked_to_infinity(attention, subject)) is not None
    ]
    for causal in (True, False):
        nodes = [attention.node for attention, is_causal in empty if is_causal == causal]
        # a bundle returns for rows of padding alone what its model returns
        if not nodes or (subject.by_posexport and not causal):
            continue
        if causal:
            text = "with padding on the left, the first queries have no key"
            severity: Severity = "error" if len(nodes) > 1 else "warning"
            then = (
                "; the next layer's keys are NaN then, and with them all outputs of that row" if len(nodes) > 1 else ""
            )
        else:
            text, severity, then = "a row of padding alone has no key", "note", ""
        yield Place(
            f"masked scores are -inf in {len(nodes)} attentions, and {text}: Softmax returns NaN{then}",
            nodes,
            severity=severity,
        )


def _is_guarded(attention: Attention) -> bool:
    """Whether probabilities that are NaN are replaced, after Softmax or in the operator."""
    if attention.fused and (attention.node.domain, attention.node.op_type) not in _UNGUARDED:
        return True
    return any(user.op_type in ("IsNaN", "Where") for user, _ in attention.node.outputs[0].uses())


def _masked_to_infinity(attention: Attention, subject: Subject) -> bool | None:
    """Whether causality is in a mask of -inf that depends on a padding mask; None: there is no mask of -inf."""
    fills = [condition for condition, fill, _ in attention.fills if is_infinite(fill)]
    masks = [*fills, *(value for value in attention.added if _adds_infinity(value))]
    # causality may be one mask and padding another
    every = {value: set(sources(value, breaks=_CONTENT)) for value in masks}
    reached = set().union(*every.values()) if every else set()
    kinds = {node.op_type for value in reached if (node := value.producer()) is not None}
    if reached.isdisjoint(subject.roles.masks) or not kinds.isdisjoint(_KEEPS_ONE):
        return None
    return bool(attention.node.attributes.get_int("unidirectional", 0)) or any(map(_is_causal, reached))


def _adds_infinity(mask: ir.Value) -> bool:
    """Whether an added mask has -inf as a constant of Where, and no number bounds it."""
    bound = mask.producer()
    if bound is not None and bound.op_type in ("Max", "Clip") and not bound.domain:
        operands = bound.inputs[:2] if bound.op_type == "Clip" else bound.inputs
        if any(element(operand, lambda _: None) is not None and not is_infinite(operand) for operand in operands):
            return False
    for value in sources(mask, breaks=_CONTENT):
        node = value.producer()
        if node is None or node.domain:
            continue
        if node.op_type == "Where" and any(is_infinite(branch) for branch in node.inputs[1:]):
            return True
    return False


def _is_causal(value: ir.Value) -> bool:
    """Whether a value is a lower triangle, or compares positions with positions."""
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in _ORDERS:
        return all(operand is not None and _has_range(operand) for operand in node.inputs)
    return node.op_type == "Trilu"


def _has_range(value: ir.Value) -> bool:
    kinds = {node.op_type for source in sources(value, breaks=_CONTENT) if (node := source.producer()) is not None}
    return bool(kinds & {"Range", "CumSum"})


RULE = Rule(
    code="PX303",
    name="empty-rows",
    severity="error",
    finds="masked scores are minus infinity where a query can have no key, and nothing replaces NaN",
    why="Softmax of minus infinities alone is NaN. A padded query gets it with padding on the left and causality; one "
    "layer later NaN keys reach every query, whatever their probability.",
    remedy="Mask with a finite number (-1e9, or half of the type's least number), or replace NaN behind Softmax "
    "(Where(IsNaN(p), 0, p)).",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        empty (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
            => (float[B, H, T, D] y)
        <int64[2] axes = {1, 2}, float none = {0.0}, double lowest = {-1e39}>
        {
            large = Cast <to = 1> (lowest)
            products = MatMul (q, k)
            keys = Unsqueeze (attention_mask, axes)
            size = Shape (products)
            ones = ConstantOfShape (size)
            kept = Cast <to = 9> (keys)
            zeros = Cast <to = 9> (ones)
            all = Not (zeros)
            earlier = Trilu <upper = 0> (all)
            both = And (earlier, kept)
            bias = Where (both, none, large)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        finite (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
            => (float[B, H, T, D] y)
        <int64[2] axes = {1, 2}, float none = {0.0}, float large = {-1000000000.0}>
        {
            products = MatMul (q, k)
            keys = Unsqueeze (attention_mask, axes)
            kept = Cast <to = 9> (keys)
            bias = Where (kept, none, large)
            scores = Add (products, bias)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
)

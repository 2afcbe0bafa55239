"""PX311: a mask whose rows meet the queries: [batch, keys] without the axes of heads and queries."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.sizes import Size
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    for attention in subject.attentions:
        axes = _batch_and_queries(attention, subject)
        if axes is None or not sizes.is_batch(axes[0]) or axes[0] == axes[1]:
            continue
        batch, queries = axes
        for mask in (*attention.added, *(condition for condition, _, _ in attention.fills)):
            shape = sizes.of(mask)
            if shape is not None and len(shape) in (2, 3) and shape[-2] == batch:
                yield Place(
                    f"the mask {mask.name!r} of {sizes.shape_text(shape)} is broadcast against the scores' queries and "
                    f"keys: {sizes.text(batch)} meets {sizes.text(queries)}, which fits a batch of 1 alone, or of as "
                    "many rows as queries",
                    [attention.node],
                )


def _batch_and_queries(attention: Attention, subject: Subject) -> tuple[Size, Size] | None:
    """The sizes of rows and queries in the scores, [B, H, T, S]; None for other scores and other operators."""
    if not attention.fused:
        shape = subject.sizes.of(attention.scores[-1])
        return (shape[0], shape[2]) if shape is not None and len(shape) == 4 else None
    query: ir.Value | None = attention.node.inputs[0]
    shape = subject.sizes.of(query) if not attention.node.domain else None
    return (shape[0], shape[-2]) if shape is not None and len(shape) in (3, 4) else None


RULE = Rule(
    code="PX311",
    name="mask-axes",
    severity="error",
    finds="a mask of [batch, keys] that is broadcast as [queries, keys]",
    why="Broadcasting counts axes from the end: the first row's mask is the first query's. A batch of 1 computes, "
    "others fail, or mask the wrong keys where the batch has as many rows as tokens.",
    remedy="Give the mask the axes [batch, 1, 1, keys], for example mask[:, None, None, :], and export again.",
    check=_check,
    bad="""
        <ir_version: 10, opset_import: ["": 23]>
        rows (float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v, bool[B, T] attention_mask)
            => (float[B, T, 20] y)
        { y = Attention <q_num_heads = 5, kv_num_heads = 5> (q, k, v, attention_mask) }
    """,
    good="""
        <ir_version: 10, opset_import: ["": 23]>
        keys (float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v, bool[B, T] attention_mask)
            => (float[B, T, 20] y)
        <int64[2] axes = {1, 2}>
        {
            mask = Unsqueeze (attention_mask, axes)
            y = Attention <q_num_heads = 5, kv_num_heads = 5> (q, k, v, mask)
        }
    """,
)

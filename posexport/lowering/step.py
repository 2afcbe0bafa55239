"""Decode step against a static KV cache that is mostly used: batched MatMul over the whole capacity.

GroupQueryAttention spends several times as long on these products as reading keys and values takes. Here every head has
a separate product of a single row, for which ONNX Runtime has a kernel; with the scale as the product's factor it
would take longer. What unused slots hold never matters (`posexport.lowering.slots`).
"""

from collections.abc import Callable

import onnx_ir as ir

from posexport.lowering.attention import Attention
from posexport.lowering.slots import used_context, used_scores
from posexport.targets.target import MICROSOFT


def step(attention: Attention, bias: Callable[[], ir.Value | None]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The context and the buffers of keys and values, of attention that appends a single token to its cache.

    ``bias`` writes the bias of the scores, [B or 1, H or 1, 1, S]; None where that is the mask alone.
    """
    g, spec, x = attention.g, attention.spec, attention.x
    heads, kv_heads = (g.Reshape(g.attribute(name, int), [1]) for name in ("heads", "kv_heads"))
    of_kv_heads = g.shape([0], kv_heads, [1], [-1])
    #: [B, KV heads, heads of each, 1, D]
    of_each = g.shape([0], kv_heads, g.Div(heads, kv_heads), [1], [-1])
    k, v = (
        g.TensorScatter(x[f"past_{name}"], g.Reshape(x[name], of_kv_heads), x["write_at"], axis=2)
        for name in ("k", "v")
    )
    q_each = g.Reshape(attention.scaled(x["q"]), of_each)
    scores = g.op("FusedMatMul", q_each, g.Unsqueeze(k, [2]), domain=MICROSOFT, transB=1)
    used = g.Shape(x["kpos"])
    scores = used_scores(g, scores, used)
    if spec.scores is None:
        probs = g.Softmax(g.Add(scores, g.Unsqueeze(x["mask"], [1])), axis=-1)
    else:
        scores_of_heads = g.Reshape(scores, g.shape([0], heads, [1], [-1]))
        probs = g.Reshape(g.Softmax(g.Add(scores_of_heads, bias()), axis=-1), of_each)
    context = used_context(
        g, probs, g.Unsqueeze(v, [2]), used=used, unused=x["unused"], axes=5, product=lambda p, v: g.MatMul(p, v)
    )
    packed = g.shape([0], [1], [-1]) if spec.packed else g.shape([0], heads, [1], [-1])
    return g.Reshape(context, packed), k, v

"""One new token for each row that attends to all keys before it, by products over the whole cache.

What a decode step of rows without padding is. GroupQueryAttention takes twice as long as these products (on an Intel
Xeon, onnxruntime 1.31: 284 and 113 microseconds for 12 heads of 64 channels, 4 KV heads and 512 tokens; 1391 and 704
for 2048), and a node of a graph about 5. So there are few nodes: no mask is added, and one Where drops unused slots.
"""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.attention import Attention
from posexport.lowering.filled_slots import Appended, written
from posexport.lowering.static import Shapes
from posexport.targets.target import MICROSOFT


def of_single_token(attention: Attention) -> Appended:
    """The context and the cache, of rotated queries and keys with packed heads."""
    g, spec, x = attention.g, attention.spec, attention.x
    shapes = Shapes.of(g)
    k, v = written(attention.over(**{name: g.Reshape(x[name], shapes.of_kv_heads) for name in "kv"}))
    q = g.Reshape(attention.scaled(x["q"]), shapes.of_each)
    scores = g.op("FusedMatMul", q, g.Unsqueeze(k, [2]), domain=MICROSOFT, transB=1)
    if spec.cache == "grow":
        context = g.MatMul(g.Softmax(scores, axis=-1), g.Unsqueeze(v, [2]))
    else:
        probs = g.Softmax(g.Where(x["used_slots"], scores, attention.lowest()), axis=-1)
        context = _of_used(g, probs, g.Unsqueeze(v, [2]), g.Shape(x["kpos"]))
    return g.Reshape(context, [0, 1, -1]), k, v


def _of_used(g: Builder, probs: ir.Value, v: ir.Value, used: ir.Value) -> ir.Value:
    """The product with all slots, or where unused ones hold NaN or infinities with copies of the used ones."""
    context = g.MatMul(probs, v)
    return g.if_(
        g.IsNaN(g.ReduceSum(context, keepdims=0)),
        lambda: g.MatMul(g.slice(probs, [0], used, -1), g.slice(v, [0], used, -2)),
        lambda: context,
        branches=("without_unused_slots", "of_all_slots"),
        name="context_of_slots",
    )

"""Additive scores, which replace ``q k^T``: a network with one hidden layer of the query and the key.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (arXiv:1409.0473), appendix
A.1.2: ``scores[i, j] = v . tanh(W q_i + U k_j)``, here in every head. The caller computes ``U k``.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, Rows, register
from posexport.graph.ops.skew import blocks
from posexport.graph.ops.tensor import Tensor

#: Queries per block of the eager operator: every pair holds a whole vector
_BLOCK = 32


def oracle(q: Array, weight: Array, keys: Array, vector: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: q [B, H, T, D], weight [H, D, D], keys [B, H, S, D], vector [H, D] -> [B, H, T, S]."""
    out = np.zeros((*q.shape[:3], len(kpos)))
    for b, h, i in np.ndindex(*q.shape[:2], len(qpos)):
        projected = weight[h].T @ q[b, h, i]
        for j in range(len(kpos)):
            out[b, h, i, j] = vector[h] @ np.tanh(projected + keys[b, h, j])
    return out


def additive_scores(q: Tensor, weight: Tensor, keys: Tensor, vector: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], weight [H, D, D], keys [B, H, S, D], vector [H, D] -> [B, H, T, S]."""
    del qpos
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, out_block in zip(blocks(q @ weight, 2, _BLOCK), blocks(out, 2, _BLOCK), strict=True):
        out_block.copy_(((q_block[:, :, :, None] + keys[:, :, None]).tanh() @ vector[:, None, :, None])[..., 0])
    return out


@script(OPSET, default_opset=op)
def AdditiveScores(
    q: FLOAT[...],
    weight: FLOAT[...],
    keys: FLOAT[...],
    vector: FLOAT[...],
    qpos: INT64[...],  # noqa: ARG001
    kpos: INT64[...],  # noqa: ARG001
) -> FLOAT[...]:
    projected = op.Unsqueeze(op.MatMul(q, weight), [3])
    hidden = op.Tanh(projected + op.Unsqueeze(keys, [2]))
    return op.Squeeze(op.MatMul(hidden, op.Unsqueeze(vector, [1, 3])), [4])


ADDITIVE_SCORES = register(
    Operator(
        name="AdditiveScores",
        eager=additive_scores,
        function=AdditiveScores,
        oracle=oracle,
        cases=[
            Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
            Case(batch=2, heads=5, queries=17, keys=19, head_size=4, table=1),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=1, offset=12),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=1),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=3, table=1),
            Case(batch=1, heads=1, queries=301, keys=277, head_size=4, table=1),
        ],
        draw=lambda case, rng: [
            rng.standard_normal((case.heads, case.head_size, case.head_size)),
            rng.standard_normal((case.batch, case.heads, case.keys, case.head_size)),
            rng.standard_normal((case.heads, case.head_size)),
        ],
        takes=("q",),
        gives="base",
        own=("weight", "keys", "vector"),
        linear=False,
        inner=("vector",),
        rows={"keys": Rows("keys", 2)},
    )
)

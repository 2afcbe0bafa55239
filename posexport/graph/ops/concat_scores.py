"""Scores that are a linear map of the concatenated query and key; they replace ``q k^T``.

``scores[i, j] = w . [q_i; k_j]``, in every head: a value of the query plus a value of the key. The caller computes the
keys' values. Luong et al. (arXiv:1508.04025), section 3.1, without the hyperbolic tangent of their ``concat``,
as in the tutorials. Softmax cancels the query's value: all queries have the same probabilities unless a position term
or a mask differs.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, Rows, register
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, query_vector: Array, of_keys: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: q [B, H, T, D], query_vector [H, D], of_keys [B, H, S] -> [B, H, T, S]."""
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, j in np.ndindex(len(qpos), len(kpos)):
        out[:, :, i, j] = (q[:, :, i] * query_vector).sum(-1) + of_keys[:, :, j]
    return out


def concat_scores(q: Tensor, query_vector: Tensor, of_keys: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], query_vector [H, D], of_keys [B, H, S] -> [B, H, T, S]."""
    del qpos, kpos
    return q @ query_vector[:, :, None] + of_keys[:, :, None]


@script(OPSET, default_opset=op)
def ConcatScores(
    q: FLOAT[...],
    query_vector: FLOAT[...],
    of_keys: FLOAT[...],
    qpos: INT64[...],  # noqa: ARG001
    kpos: INT64[...],  # noqa: ARG001
) -> FLOAT[...]:
    return op.MatMul(q, op.Unsqueeze(query_vector, [2])) + op.Unsqueeze(of_keys, [2])


CONCAT_SCORES = register(
    Operator(
        name="ConcatScores",
        eager=concat_scores,
        function=ConcatScores,
        oracle=oracle,
        cases=[
            Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
            Case(batch=2, heads=5, queries=17, keys=19, head_size=4, table=1),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=1, offset=12),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=1),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=3, table=1),
            Case(batch=1, heads=2, queries=301, keys=277, head_size=3, table=1),
        ],
        draw=lambda case, rng: [
            rng.standard_normal((case.heads, case.head_size)),
            rng.standard_normal((case.batch, case.heads, case.keys)),
        ],
        takes=("q",),
        gives="base",
        own=("query_vector", "of_keys"),
        rows={"of_keys": Rows("keys", 2)},
        linear=False,
    )
)

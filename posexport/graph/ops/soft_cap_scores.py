"""Soft-capped products of query and key, which replace ``q k^T``: ``cap tanh(q k^T / cap)``.

Gemma team, "Gemma 2" (arXiv:2408.00118), section 2, "logit soft-capping" (there of scaled products: the caller divides
the cap by the scale). Position terms and masks are added after it: the cap does not bound them.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, register
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, k: Array, cap: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: q [B, H, T, D], k [B, H, S, D], cap [1] -> [B, H, T, S]."""
    out = np.zeros((*q.shape[:3], len(kpos)))
    for i, j in np.ndindex(len(qpos), len(kpos)):
        shrunk = (q[:, :, i] * k[:, :, j]).sum(-1) / cap[0]
        # the hyperbolic tangent by the exponential function of a bounded argument, which never overflows
        out[:, :, i, j] = cap[0] * np.sign(shrunk) * (1 - 2 / (np.exp(np.minimum(2 * np.abs(shrunk), 600)) + 1))
    return out


def soft_cap_scores(q: Tensor, k: Tensor, cap: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], k [B, H, S, D], cap [1] -> [B, H, T, S]."""
    del qpos, kpos
    return (q @ k.mT / cap).tanh() * cap


@script(OPSET, default_opset=op)
def SoftCapScores(
    q: FLOAT[...],
    k: FLOAT[...],
    cap: FLOAT[...],
    qpos: INT64[...],  # noqa: ARG001
    kpos: INT64[...],  # noqa: ARG001
) -> FLOAT[...]:
    products = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
    return op.Tanh(products / cap) * cap


SOFT_CAP_SCORES = register(
    Operator(
        name="SoftCapScores",
        eager=soft_cap_scores,
        function=SoftCapScores,
        oracle=oracle,
        cases=[
            Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
            Case(batch=2, heads=5, queries=17, keys=19, head_size=4, table=2),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=1, offset=12),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=3),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=3, table=1),
            Case(batch=1, heads=2, queries=301, keys=277, head_size=3, table=1),
        ],
        draw=lambda case, rng: [case.table + rng.random(1)],
        takes=("q", "k"),
        gives="base",
        own=("cap",),
        linear=False,
    )
)

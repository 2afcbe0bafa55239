"""Scores of a query against a learned vector for the key's contextual position: a sum of gates from key j to query i.

Golovneva et al., "Contextual Position Encoding" (arXiv:2405.18719), section 4: ``g[i, k] = sigmoid(q_i . k_k /
sqrt(d))`` is a key's gate, ``p[i, j] = sum_{k = j..i} g[i, k]`` the position of key j, and the score
``q_i . e[p[i, j]]`` is interpolated between the whole positions below and above. The division is in the released code
(appendix), not in the text.
"""

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Array, Case, Operator, register
from posexport.graph.ops.skew import blocks
from posexport.graph.ops.tensor import Tensor


def oracle(q: Array, k: Array, table: Array, gate_scale: Array, qpos: Array, kpos: Array) -> Array:
    """One pair at a time: q [B, H, T, D], k [B, H, S, D], table [P, D], gate_scale [1] -> [B, H, T, S]."""
    out = np.zeros((*q.shape[:3], len(kpos)))
    for b, h, i in np.ndindex(q.shape[:3]):
        counted = 0.0
        for j in reversed(range(len(kpos))):
            if kpos[j] <= qpos[i]:
                counted += 1 / (1 + np.exp(-gate_scale[0] * (q[b, h, i] @ k[b, h, j])))
            place = min(counted, len(table) - 1)
            below = int(np.floor(place))
            above = int(np.ceil(place))
            fraction = place - below
            out[b, h, i, j] = q[b, h, i] @ (table[above] * fraction + table[below] * (1 - fraction))
    return out


def contextual_scores(q: Tensor, k: Tensor, table: Tensor, gate_scale: Tensor, qpos: Tensor, kpos: Tensor) -> Tensor:
    """q [B, H, T, D], k [B, H, S, D], table [P, D], gate_scale [1], float32 or wider -> [B, H, T, S]."""
    out = q.new_empty(*q.shape[:3], kpos.shape[0])
    for q_block, t, out_block in zip(blocks(q, 2), blocks(qpos), blocks(out, 2), strict=True):
        # a sum of many gates in half precision would stop growing: small addends are rounded away
        gate = (q_block.to(gate_scale.dtype) @ k.to(gate_scale.dtype).mT * gate_scale).sigmoid()
        gate = gate.masked_fill(kpos > t[:, None], 0)
        # summed one by one: in float32 the roundings of a long row would add up
        place = gate.double().flip(-1).cumsum(-1).flip(-1).clamp(max=table.shape[0] - 1)
        below = place.floor()
        fraction = (place - below).to(gate.dtype)
        whole = q_block.to(gate_scale.dtype) @ table.to(gate_scale.dtype).mT
        at_below = whole.gather(-1, below.long())
        at_above = whole.gather(-1, place.ceil().long())
        out_block.copy_(at_above * fraction + at_below * (1 - fraction))
    return out


@script(OPSET, default_opset=op)
def ContextualScores(
    q: FLOAT[...], k: FLOAT[...], table: FLOAT[...], gate_scale: FLOAT[...], qpos: INT64[...], kpos: INT64[...]
) -> FLOAT[...]:
    wide = op.CastLike(q, gate_scale)
    keys = op.Transpose(op.CastLike(k, gate_scale), perm=[0, 1, 3, 2])
    gate = op.Sigmoid(op.MatMul(wide, keys) * gate_scale)
    later = op.Less(op.Unsqueeze(qpos, [1]), kpos)
    counting = op.Where(later, op.CastLike(0.0, gate_scale), gate)
    # summed one by one: in float32 the roundings of a long row would add up
    summed = op.CumSum(op.Cast(counting, to=11), op.Constant(value_int=-1), reverse=1)
    place = op.Min(summed, op.Cast(op.Shape(table, start=0, end=1) - 1, to=11))
    below = op.Floor(place)
    part = op.CastLike(place - below, gate_scale)
    whole = op.MatMul(wide, op.Transpose(op.CastLike(table, gate_scale), perm=[1, 0]))
    at_below = op.GatherElements(whole, op.Cast(below, to=7), axis=-1)
    at_above = op.GatherElements(whole, op.Cast(op.Ceil(place), to=7), axis=-1)
    return op.CastLike(at_above * part + at_below * (op.CastLike(1.0, gate_scale) - part), q)


CONTEXTUAL_SCORES = register(
    Operator(
        name="ContextualScores",
        counts=True,
        eager=contextual_scores,
        function=ContextualScores,
        oracle=oracle,
        cases=[
            Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
            Case(batch=2, heads=5, queries=17, keys=17, head_size=4, table=40),
            Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=6, offset=12),
            Case(batch=1, heads=2, queries=1, keys=23, head_size=6, table=64, offset=22),
            Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=7),
            Case(batch=3, heads=2, queries=29, keys=5, head_size=6, table=2, offset=-3),
            Case(batch=1, heads=2, queries=4, keys=9, head_size=6, table=16, offset=90),
            # a short table: the error of a position grows with its value
            Case(batch=1, heads=1, queries=301, keys=277, head_size=4, table=12),
        ],
        draw=lambda case, rng: [rng.standard_normal((case.table, case.head_size)), np.array([case.head_size**-0.5])],
        takes=("q", "k"),
        gives="scores",
        own=("table", "gate_scale"),
        scaled=False,
        linear=False,
        wide=("gate_scale",),
    )
)

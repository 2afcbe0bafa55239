"""The relative shift, from columns of distances to keys, as ONNX functions that the operators' functions call.

As in `window`, every query's row of distances is the previous query's, shifted by one. Here a row has T + S + 1
columns, the greatest distance first: the pair (i, j) is in column ``T - i + j``, so that in the flattened rows the keys
of query i begin at ``T + i (T + S)``.

There are two sets of these functions. The first accepts any sizes and shifts rows by two Slices, which ONNX Runtime's
CPU provider copies with one thread. The ``Whole`` set requires T and S to be multiples of `CHUNK`; then all offsets are
multiples too, and one Gather copies whole chunks with all threads. (They are not two branches of one function: a branch
copies a tensor from outside that it reshapes.)
"""

from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.ops.operator import OPSET, Operator, helper, protos

#: elements of one copy: enough for speed, few enough that padding to a multiple costs little
CHUNK = 32


def skews(operator: Operator) -> bool:
    """Whether the operator's function has a faster variant for queries and keys in whole chunks."""
    return any(proto.name == "Skew" for proto in protos(operator.function, 18))


@helper
@script(OPSET, default_opset=op)
def Distances(qpos: INT64[...], kpos: INT64[...]) -> INT64[...]:
    T = op.Shape(qpos)
    S = op.Shape(kpos)
    greatest = op.Slice(qpos, [0], [1]) + T - op.Slice(kpos, [0], [1])
    return greatest - op.Range(0, op.Squeeze(T + S + 1, [0]), 1)


@helper
@script(OPSET, default_opset=op)
def Skew(by_column: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:
    lead = op.Shape(by_column, end=-2)
    T = op.Shape(by_column, start=-2, end=-1)
    columns = op.Shape(by_column, start=-1)
    flat = op.Reshape(by_column, op.Concat(lead, T * columns, axis=0), allowzero=1)
    moved = op.Reshape(op.Slice(flat, T, T * columns, [-1]), op.Concat(lead, T, columns - 1, axis=0), allowzero=1)
    return op.Slice(moved, [0], keys, [-1])


@helper
@script(OPSET, default_opset=op)
def WholeSkew(by_column: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:
    T = op.Shape(by_column, start=-2, end=-1)
    columns = op.Shape(by_column, start=-1)
    chunks = op.Reshape(by_column, op.Concat([-1], T * columns / 32, [32], axis=0))
    first = (op.Unsqueeze(op.Range(0, op.Squeeze(T, [0]), 1), [1]) * (columns - 1) + T) / 32
    rows = op.Gather(chunks, first + op.Range(0, op.Squeeze(keys / 32, [0]), 1), axis=1)
    return op.Reshape(rows, op.Concat(op.Shape(by_column, end=-2), T, keys, axis=0))


# Key terms are computed by blocks of keys, each against the distances that the queries have from it. Blocks in whole
# chunks have 32 keys, or 64 where S and ``most`` allow it: more distances per product, but fewer copied rows.


@helper
@script(OPSET, default_opset=op)
def KeysOfBlock(T: INT64[...], S: INT64[...], most: INT64[...]) -> INT64[...]:  # noqa: ARG001
    return op.Min(op.Max(T, [8]), S)


@helper
@script(OPSET, default_opset=op)
def WholeKeysOfBlock(T: INT64[...], S: INT64[...], most: INT64[...]) -> INT64[...]:  # noqa: ARG001
    return op.Min(64 - op.Mod(S, [64]), most)


@helper
@script(OPSET, default_opset=op)
def FilledUp(k: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:
    missing = keys - op.Shape(k, start=2, end=3)
    return op.Pad(k, op.Concat([0], missing, axis=0), None, [2])


@helper
@script(OPSET, default_opset=op)
def WholeFilledUp(k: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:  # noqa: ARG001
    return op.Identity(k)


@helper
@script(OPSET, default_opset=op)
def CutOff(scores: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:
    return op.Slice(scores, [0], keys, [3])


@helper
@script(OPSET, default_opset=op)
def WholeCutOff(scores: FLOAT[...], keys: INT64[...]) -> FLOAT[...]:  # noqa: ARG001
    return op.Identity(scores)

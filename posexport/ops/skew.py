"""The skew, from columns of distances to keys, as functions of domain ``posexport`` that the operators' functions call.

As in `window`, every query's row of distances is the one before it moved by one. Here a row has T + S + 1 columns, the
greatest distance first: the pair (i, j) stands in column ``T - i + j``, so that, row behind row, query i's keys begin
at ``T + i (T + S)``.

There are two sets of these functions. One takes any sizes, and moves rows by two Slices, each of which ONNX Runtime's
CPU provider copies with one thread. The ``Whole`` ones need T and S in multiples of `CHUNK`: then all of these places
are such multiples too, and one Gather copies whole chunks with all threads. (Not two branches of one function: what a
branch reshapes from outside it copies.)
"""

from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.ops.operator import OPSET, Operator, helper, protos

#: numbers that are copied at once: enough to be worth it, few enough that padding to a multiple costs little
CHUNK = 32


def skews(operator: Operator) -> bool:
    """The operator's function is faster for queries and keys in whole chunks."""
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


# Terms of a key go by blocks of keys, each against the distances that the queries have from it. Whole blocks have 32
# keys, or 64 where S allows and ``most`` says so: a distance more is multiplied, but a row of it copied less often.


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

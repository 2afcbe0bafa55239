"""The relative shift, from columns of distances to keys, and the arithmetic that all relative operators share.

Queries at consecutive positions ``q0 .. q0+T-1`` and keys at ``k0 .. k0+S-1`` have only T + S - 1 distances. Listed
from the greatest down, column ``c`` holds the distance (query minus key) ``top - c`` with ``top = q0 + T - 1 - k0``,
and the pair (i, j) is in column ``T - 1 - i + j``: every query's row is the previous query's, shifted by one. One
column more (T + S) makes the move a plain reshape at every length, 1 included.

As in `window`, every query's row of distances is the previous query's, shifted by one. Here a row has T + S + 1
columns, the greatest distance first: the pair (i, j) is in column ``T - i + j``, so that in the flattened rows the keys
of query i begin at ``T + i (T + S)``.

There are two sets of these functions. The first accepts any sizes and shifts rows by two Slices, which ONNX Runtime's
CPU provider copies with one thread. The ``Whole`` set requires T and S to be multiples of `CHUNK`; then all offsets are
multiples too, and one Gather copies whole chunks with all threads. (They are not two branches of one function: a branch
copies a tensor from outside that it reshapes.)
"""

from collections.abc import Iterator

from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, Operator, helper, protos
from posexport.graph.ops.tensor import Tensor

#: Queries per block of the eager operators: bounds their memory at about block x (block + S).
BLOCK = 256


def blocks(x: Tensor, dim: int = 0, size: int = BLOCK) -> Iterator[Tensor]:
    """Views of ``x``, each of at most ``size`` along ``dim``; ``x`` itself while PyTorch compiles, for any length.

    Autograd follows in-place writes to them. It would not for ``torch.split``, several views of one operator, nor for
    views that were made before their neighbour was written.
    """
    import torch

    if torch.compiler.is_compiling():
        yield x
        return
    for start in range(0, x.shape[dim], size):
        yield x.narrow(dim, start, min(size, x.shape[dim] - start))


def columns(q_T: Tensor, k_S: Tensor) -> Tensor:
    """The distance (query minus key) of each of the T + S columns, greatest first; int64."""
    import torch

    width = q_T.shape[0] + k_S.shape[0]
    return q_T[-1] - k_S[0] - torch.arange(width, device=q_T.device)


def skew(x: Tensor, keys: int) -> Tensor:
    """[..., T, T + S] by distance column -> [..., T, S] by key: out[i, j] = x[i, T - 1 - i + j]. A view, no copy."""
    T, width = x.shape[-2:]
    moved = x.flatten(-2)[..., T - 1 : T - 1 + T * (width - 1)]
    return moved.view(*x.shape[:-1], width - 1)[..., :keys]


def toeplitz(by_column: Tensor, queries: int, keys: int) -> Tensor:
    """[..., T + S] by distance column, the same for all queries -> [..., T, S] by key."""
    return skew(by_column[..., None, :].expand(*by_column.shape[:-1], queries, -1), keys)


def unskew(x: Tensor) -> Tensor:
    """[..., T, S] by key -> [..., T, T + S] by distance column; columns without a key are 0. Undoes `skew`."""
    T, S = x.shape[-2:]
    out = x.new_zeros(*x.shape[:-1], T + S)
    skew(out, S).copy_(x)
    return out


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

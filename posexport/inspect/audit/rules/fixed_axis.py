"""PX103: a weight or constant of fixed size that a dynamic axis meets: a table or mask of the example's length."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from posexport.inspect.audit.analyses.conflicts import Conflict
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: elements of a constant that is looked at
_MOST = 1 << 22


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    for conflict in subject.conflicts:
        node = conflict.fixed.producer()
        if (node is not None and node.op_type != "Constant") or sizes.is_batch(conflict.free):
            continue
        if conflict.fixed.is_graph_input() and not conflict.fixed.is_initializer():
            continue  # two inputs, one with a free axis: the caller's sizes
        yield Place(
            f"{sizes.text(conflict.free)} is declared dynamic, and {conflict.node.op_type} needs it to be "
            f"{conflict.number}, the size of {_what(conflict)} {conflict.fixed.name!r}",
            [conflict.node],
        )


def _what(conflict: Conflict) -> str:
    """What a constant is, by its elements."""
    tensor = ir.convenience.get_const_tensor(conflict.fixed)
    if tensor is None or tensor.size > _MOST or len(tensor.shape) < 2:
        return "the constant"
    array = tensor.numpy()
    last = array.reshape(-1, *array.shape[-2:])[0]
    if last.shape[0] != last.shape[1] or last.shape[0] < 2:
        return "the constant"
    upper = np.triu(np.ones(last.shape, bool), 1)
    dropped = np.less(last, -1e4) if last.dtype.kind == "f" else last == (last[0, -1])
    return "the causal mask" if np.array_equal(np.asarray(dropped), upper) else "the constant"


RULE = Rule(
    code="PX103",
    name="fixed-axis",
    severity="error",
    finds="a constant of the example's length meets an axis that is declared dynamic",
    why="A position table, attention bias or causal mask was computed once, for the example: the axis cannot vary.",
    remedy="Compute positions, bias or mask from the input's size (torch.arange(x.shape[1])) and export again; or "
    "declare the axis as fixed.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        fixed (float[B, T, 2] x) => (float[B, T, 2] y)
        <float[1, 3, 2] positions = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Add (x, positions) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (float[B, T, 2] x) => (float[B, T, 2] y)
        <float[1, 3, 2] positions = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64[1] zero = {0}, int64[1] one = {1}>
        {
            length = Shape <start = 1, end = 2> (x)
            rows = Slice (positions, zero, length, one)
            y = Add (x, rows)
        }
    """,
)

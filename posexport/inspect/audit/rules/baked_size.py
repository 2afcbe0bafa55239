"""PX101: a length of the example in Reshape, Expand, Tile, Slice, Range or a constant."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    for reshape in subject.fixed_reshapes:
        if reshape.merged or _is_batch(subject, reshape.before[0], reshape.place):
            continue
        yield Place(
            f"reshapes {sizes.shape_text(reshape.before)} to {sizes.shape_text(reshape.target)}, whose "
            f"{reshape.number} is a size of the example",
            [reshape.node],
        )
    for conflict in subject.conflicts:
        computed = conflict.fixed.producer()
        if computed is None or computed.op_type == "Constant" or sizes.is_batch(conflict.free):
            continue
        yield Place(
            f"{sizes.text(conflict.free)} is declared dynamic, and {conflict.node.op_type} needs it to be "
            f"{conflict.number}: {computed.op_type} {_text(computed)} has that size whatever the input",
            [conflict.node, computed],
            # strides round: several sizes may have that quotient
            severity="warning" if "floor" in str(conflict.free) else None,
        )


def _is_batch(subject: Subject, free: object, place: int) -> bool:
    return place == 0 and isinstance(free, str) and subject.sizes.is_batch(free)


def _text(node: ir.Node) -> str:
    return repr(node.name or node.outputs[0].name)


RULE = Rule(
    code="PX101",
    name="baked-size",
    severity="error",
    finds="a size of the example stayed in the graph while the axis is declared dynamic",
    why="The graph computes for one length only; at others it fails, or computes with the wrong rows.",
    remedy="Export again with a dynamic axis that the exporter keeps: the size was a Python number when it was traced "
    "(int(x.shape[1]), len(x)); posexport convert traces it as an axis, and proves other lengths.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        baked (float[B, T, 20] x) => (float[B, N, 4, 5] y)
        <int64[4] shape = {-1, 17, 4, 5}>
        { y = Reshape (x, shape) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (float[B, T, 20] x) => (float[B, T, 4, 5] y)
        <int64[4] shape = {0, -1, 4, 5}>
        { y = Reshape (x, shape) }
    """,
)

"""PX102: the batch size of the example in Reshape, Expand, Tile, Concat or a constant."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    for reshape in subject.fixed_reshapes:
        first = reshape.before[0]
        if reshape.merged or (reshape.place == 0 and isinstance(first, str) and sizes.is_batch(first)):
            then = "rows of a larger batch become one long row" if reshape.merged else "other batch sizes fail"
            yield Place(
                f"reshapes {sizes.shape_text(reshape.before)} to {sizes.shape_text(reshape.target)}: its batch size is "
                f"{reshape.number}, and {then}",
                [reshape.node],
            )
    for conflict in subject.conflicts:
        if not sizes.is_batch(conflict.free):
            continue
        source = conflict.fixed.producer()
        where = f"{conflict.fixed.name!r}" if source is None else f"{source.op_type} {conflict.fixed.name!r}"
        yield Place(
            f"{sizes.text(conflict.free)} is declared dynamic, and {conflict.node.op_type} needs it to be "
            f"{conflict.number}, the batch size of {where}",
            [conflict.node, *([source] if source is not None else [])],
        )


RULE = Rule(
    code="PX102",
    name="baked-batch",
    severity="error",
    finds="the batch size of the example stayed in the graph while the axis is declared dynamic",
    why="Calls with several rows fail, or mix rows: a batch that becomes one long sequence attends across its rows.",
    remedy="Export again with a batch of 2 or more as the example, and a dynamic batch axis; a batch of 1 is taken for "
    "a constant.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        baked (float[B, P, 6] patches) => (float[B, N, 6] y)
        <float[1, 1, 6] cls = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Concat <axis = 1> (cls, patches) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (float[B, P, 6] patches) => (float[B, N, 6] y)
        <float[1, 1, 6] cls = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64[2] ones = {1, 1}>
        {
            batch = Shape <start = 0, end = 1> (patches)
            shape = Concat <axis = 0> (batch, ones)
            rows = Expand (cls, shape)
            y = Concat <axis = 1> (rows, patches)
        }
    """,
)

"""PX201: positions beyond the end of a position table."""

from collections.abc import Iterator

from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    for lookup in lookups(subject.nodes, subject.roles, subject.sizes):
        if lookup.bounded or lookup.origin == "buffer":
            continue
        yield Place(
            f"{name_of(lookup.node)!r} reads {lookup.table.name!r} by position, which has {lookup.rows} rows, and "
            "nothing stops longer inputs",
            [lookup.node],
        )


RULE = Rule(
    code="PX201",
    name="position-table",
    severity="warning",
    finds="a table of positions is shorter than its axis, and nothing refuses longer inputs",
    # onnxruntime 1.31: Gather of a Range becomes a Slice, which ends at the last row
    why="Beyond the last row ONNX Runtime's CPU provider fails in Gather, or returns fewer rows where it made it a "
    "Slice; CUDA reads whatever is in memory there, and WebGPU reads zeros: wrong embeddings without a word.",
    remedy="Truncate in the tokenizer (model_max_length), or convert with posexport, whose graphs refuse such inputs "
    "with the limit.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        unguarded (int64[B, T] ids) => (float[T, 2] y)
        <float[4, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, int64 zero = {0}, int64 one = {1}>
        {
            length = Shape <start = 1, end = 2> (ids)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            y = Gather (table, positions)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        clipped (int64[B, T] ids) => (float[T, 2] y)
        <float[4, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0},
         int64 zero = {0}, int64 one = {1}, int64 last = {3}>
        {
            length = Shape <start = 1, end = 2> (ids)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            within = Min (positions, last)
            y = Gather (table, within)
        }
    """,
)

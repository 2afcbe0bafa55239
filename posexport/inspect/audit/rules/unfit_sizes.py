"""PX105: two constant sizes that meet and differ: no input fits."""

from collections.abc import Iterator

from posexport.inspect.audit.analyses.conflicts import unfit
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    for node, first, second in unfit(subject.unconditional, sizes):
        shapes = " and ".join(f"{value.name!r} {sizes.shape_text(sizes.of(value) or ())}" for value in (first, second))
        yield Place(f"{node.op_type} takes {shapes}, whose sizes do not fit: every call fails", [node])


RULE = Rule(
    code="PX105",
    name="unfit-sizes",
    severity="error",
    finds="sizes of two values differ where they have to be equal",
    why="The graph was built for other sizes than its weights or its cache have (a second head size, another number of "
    "heads): the file does not open, or every call fails.",
    remedy="Export with a builder that knows this type of model; posexport convert refuses what it does not know, and "
    "calls a graph before it writes it.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        unfit (float[B, 2, T, 10] k, float[B, 2, P, 6] past_key) => (float[B, 2, S, 10] present_key)
        { present_key = Concat <axis = 2> (past_key, k) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        fit (float[B, 2, T, 10] k, float[B, 2, P, 10] past_key) => (float[B, 2, S, 10] present_key)
        { present_key = Concat <axis = 2> (past_key, k) }
    """,
)

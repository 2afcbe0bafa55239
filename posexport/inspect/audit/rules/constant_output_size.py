"""PX104: an output with a dynamic axis that has one size whatever the input."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    sizes = subject.sizes
    if subject.conflicts or subject.fixed_reshapes:
        return  # those say where it comes from
    for value in subject.graph.outputs:
        declared, actual = sizes.declared.get(value), sizes.of(value)
        if declared is None or actual is None or len(declared) != len(actual):
            continue
        for axis, (stated, size) in enumerate(zip(declared, actual, strict=True)):
            name = None if isinstance(stated, int) else stated.value
            if isinstance(size, int) and name in sizes.axes.values():
                yield Place(
                    f"output {value.name!r} has {size} elements along axis {axis}, declared {name!r}, whatever the "
                    "input's size",
                    [node] if (node := value.producer()) is not None else [],
                )


RULE = Rule(
    code="PX104",
    name="constant-output-size",
    severity="error",
    finds="an output's axis is declared with an input's name and has one size",
    why="A noise, a mask or a range of the example's length decides how long the output is: longer inputs are cut, "
    "shorter ones end in something that was never there.",
    remedy="Find what has the example's length (the first node named) and compute it from the input; export again.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        constant (int64[B, T] ids) => (float[B, T] y)
        <int64[1] zero = {0}, int64[1] end = {3}, int64[1] axis = {1}>
        {
            cut = Slice (ids, zero, end, axis)
            y = Cast <to = 1> (cut)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (int64[B, T] ids) => (float[B, T] y)
        { y = Cast <to = 1> (ids) }
    """,
)

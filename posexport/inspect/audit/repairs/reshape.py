"""PX101 and PX102: sizes of the example in a Reshape, Concat or Tile are computed from the input."""

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.inspect.audit.analyses.conflicts import Conflict
from posexport.inspect.audit.analyses.reshapes import FixedReshape
from posexport.inspect.audit.analyses.sizes import Size
from posexport.inspect.audit.repairs.example_constant import computed
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    node = place.nodes[0]
    for reshape in subject.fixed_reshapes:
        if reshape.node is node:
            return _reshape(reshape)
    for conflict in subject.conflicts:
        if conflict.node is node:
            changed = computed(subject, conflict)
            return _repeat(conflict, subject) if changed is None else changed
    raise NotRepairedError("its sizes are not known any more")


def _reshape(reshape: FixedReshape) -> list[ir.Value]:
    """Free axes are read from the input.

    Before: ``Reshape(x [B, T, 20], [-1, 17, 4, 5])``
    After:  ``Reshape(x, Concat(Shape(x)[0:1], Shape(x)[1:2], [4, 5]))``
    """
    free = _aligned(reshape.before, reshape.target)
    if free is None:
        raise NotRepairedError(f"its input {reshape.before} and {list(reshape.target)} have no axes in common")
    g = Builder.at(reshape.node, name=f"{reshape.node.outputs[0].name}_shape")
    x = reshape.node.inputs[0]
    assert x is not None
    parts = [
        [size] if isinstance(size, int) and axis not in free else g.size(x, axis)
        for axis, size in enumerate(reshape.target)
    ]
    reshape.node.replace_input_with(1, g.shape(*parts))
    return [*reshape.node.outputs]


def _aligned(before: Sequence[Size], target: Sequence[Size]) -> set[int] | None:
    """The axes of ``target`` that are free axes of ``before`` at the same place; None if there are none."""
    free: set[int] = set()
    for axis, size in enumerate(before[: len(target)]):
        rest, rest_of_target = before[axis:], target[axis:]
        if all(isinstance(each, int) for each in rest):
            numbers = [each for each in rest_of_target if isinstance(each, int)]
            known = prod(each for each in rest if isinstance(each, int))
            whole = len(numbers) == len(rest_of_target) and -1 not in numbers
            return free if whole and prod(numbers) == known else None
        if isinstance(size, str):
            free.add(axis)
        elif size != target[axis]:
            return None
    return free if len(before) == len(target) else None


def _repeat(conflict: Conflict, subject: Subject) -> list[ir.Value]:
    """A value of one row is repeated for each row of the others.

    Before: ``Concat(cls [1, 1, D], patches [B, P, D])``
    After:  ``Concat(Expand(cls, Concat(Shape(patches)[0:1], [1, 1])), patches)``
    """
    node, fixed = conflict.node, conflict.fixed
    rows = subject.sizes.of(fixed)
    other = next(
        (
            value
            for value in node.inputs
            if value is not None and (sizes := subject.sizes.of(value)) and len(sizes) >= -conflict.axis
            if sizes[conflict.axis] == conflict.free
        ),
        None,
    )
    if rows is None or other is None or node.op_type == "Expand":
        raise NotRepairedError(f"{node.op_type} has no input with that axis")
    rank = len(rows)
    shape = subject.sizes.of(other) or ()
    g = Builder.at(node, name=f"{fixed.name}_repeated")
    first = fixed if conflict.number == 1 else _one_row(g, conflict, rank, subject)
    ones = [1] * rank
    before, after = ones[: rank + conflict.axis], ones[rank + conflict.axis + 1 :]
    count = g.size(other, len(shape) + conflict.axis)
    repeated = g.Expand(first, g.shape(*([before] if before else []), count, *([after] if after else [])))
    for index, value in enumerate(node.inputs):
        if value is fixed:
            node.replace_input_with(index, repeated)
    return [*node.outputs]


def _one_row(g: Builder, conflict: Conflict, rank: int, subject: Subject) -> ir.Value:
    """One row of a value that has the same row for all of the example's batch."""
    source = conflict.fixed.producer()
    repeated = source is not None and source.op_type in ("Tile", "Expand") and not source.domain
    before = subject.sizes.of(source.inputs[0]) if source is not None and repeated else None
    if before is None or len(before) != rank or before[conflict.axis] != 1:
        raise NotRepairedError(f"{conflict.fixed.name!r} has {conflict.number} rows of its own")
    return g.slice(conflict.fixed, [0], [1], conflict.axis)


REPAIR = Repair(does="sizes of the example are computed from the input", apply=_apply)

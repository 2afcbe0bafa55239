"""Remarks on lines of a user's module that its graph was made from, for the message if its proof fails.

It is kept in memory, not in the graph: the file has no paths of the machine that wrote it
(`posexport.conversion.export.save`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.base.system.user_code import line_of_trace
from posexport.conversion.export.messages import meaning
from posexport.conversion.export.trace import SIZE_USES
from posexport.graph.queries import with_bodies
from posexport.sources.torch_fixes.size_uses import Choice, SizeUses

_STACK = "pkg.torch.onnx.stack_trace"
#: the largest size that a module is traced at to take another branch
_TRACED = 1024
#: how ONNX Runtime names a node in its messages
_NAMED = re.compile(r"(?:Name: ?|Node ?\()'?([\w./-]+)'?")


@dataclass(frozen=True)
class Step:
    """The number whose multiples a ``line`` of the user's treats in another way than other sizes."""

    divisor: int
    line: str


@dataclass(frozen=True)
class OtherSide:
    """The least ``size`` of an axis at which a ``line`` of the user's takes another branch than below it."""

    size: int
    line: str


@dataclass(frozen=True)
class Written:
    """The user's lines, by the name of the node that they became.

    ``suspects``: lines that a missed proof may come from, with a remark on each. ``steps``: axes for whose multiples
    of a number the graph was traced, or for all other sizes: a line branches by the remainder. ``other_sides``: axes
    with a branch for larger sizes than the traced one. ``least``: axes with a branch for smaller sizes than these.
    ``turns``: sizes by axis at which a line takes another branch than in the trace.
    """

    lines: Mapping[str, str] = field(default_factory=dict)
    suspects: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, "Step"] = field(default_factory=dict)
    other_sides: Mapping[str, "OtherSide"] = field(default_factory=dict)
    least: Mapping[str, "OtherSide"] = field(default_factory=dict)
    turns: Sequence[Mapping[str, int]] = ()

    def about(self, text: str) -> str | None:
        """A message of ONNX Runtime explained for the module."""
        named = _NAMED.search(text)
        return meaning(text, self.lines.get(named[1], "") if named else "")

    def reasons(self) -> Iterator[str]:
        """Yields a sentence for every suspect that has an explanation."""
        for line, what in self.suspects.items():
            if (sentence := meaning(what, line)) is not None:
                yield sentence


def written_by(model: ir.Model) -> Written:
    """Read from what the tracer noted at the nodes of ``model``, which `provenance.strip` drops."""
    lines: dict[str, str] = {}
    uses: SizeUses = model.meta.get(SIZE_USES) or SizeUses()
    suspects = {
        line: f"was decided {choice} by a size while the module was traced" for line, choice in uses.branches.items()
    }
    axes = {value.name: [str(axis) for axis in value.shape or ()] for value in model.graph.inputs}
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for body in with_bodies(graph):
            for node in body:
                line = line_of_trace(node.metadata_props.get(_STACK, ""))
                if node.name and line:
                    lines[node.name] = line
                if node.op_type == "Resize" and node.attributes.get_int("antialias", False):
                    suspects[line] = "a node Resize with antialias, in a graph that is not proven"
    turns = [
        {**{axes[name][number]: traced for name, number, traced in choice.others}, axis: size}
        for choice, axis, _ in _choices(uses, axes)
        for size in choice.turns()
    ]
    larger = _sides(uses, axes, lambda choice: choice.other_side(_TRACED))
    least = _sides(uses, axes, Choice.least_of_side)
    least = {axis: side for axis, side in least.items() if side.size > 1}
    return Written(
        lines,
        suspects,
        _steps(uses, axes),
        larger,
        least,
        [turn for at, turn in enumerate(turns) if turn not in turns[:at]],
    )


def _choices(uses: SizeUses, axes: Mapping[str | None, Sequence[str]]) -> Iterator[tuple[Choice, str, str]]:
    """Yields every comparison with the axis that it is of and its line; ``axes``: of every input."""
    for choice, line in uses.choices.items():
        for axis in axes.get(choice.input, ())[choice.axis : choice.axis + 1]:
            yield choice, axis, line


def _steps(uses: SizeUses, axes: Mapping[str | None, Sequence[str]]) -> dict[str, Step]:
    """By axis; ``axes``: of every input."""
    steps: dict[str, Step] = {}
    for remainder, line in uses.remainders.items():
        for axis in axes.get(remainder.input, ())[remainder.axis : remainder.axis + 1]:
            divisor = steps[axis].divisor if axis in steps else 1
            steps[axis] = Step(math.lcm(divisor, remainder.divisor), line)
    return steps


def _sides(
    uses: SizeUses, axes: Mapping[str | None, Sequence[str]], size_of: Callable[[Choice], int | None]
) -> dict[str, OtherSide]:
    """By axis, the largest one; ``axes``: of every input. ``size_of``: where a comparison is decided otherwise."""
    sides: dict[str, OtherSide] = {}
    for choice, axis, line in _choices(uses, axes):
        size = size_of(choice) if choice.has_sides and not (choice.is_of_call or choice.others) else None
        if size is not None and (axis not in sides or size > sides[axis].size):
            sides[axis] = OtherSide(size, line)
    return sides

"""What a graph that failed shows of a module's axes: with it, another graph of the module may not fail."""

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, HEIGHT, SEQUENCE, WIDTH
from posexport.conversion.result import Failed, MissedError
from posexport.errors import RefusedSizesError
from posexport.proof.report.points import NOT_RUN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from posexport.conversion.export.build import Built
    from posexport.conversion.export.messages import FixedAxisError
    from posexport.conversion.export.written import OtherSide
    from posexport.proof.report.points import Point
    from posexport.sources.load_options import Shown
    from posexport.sources.source import Source

#: the rank of a batch of images
_OF_IMAGES = 4


def shown_by_graph(source: "Source", built: "list[Built]", shown: "Shown", error: Exception) -> Failed | None:
    """Where a line branches by a size, and the graph may have the wrong side."""
    return (
        _in_steps(source, built, shown, error)
        or _larger(source, built, shown, error)
        or _from_least(source, built, shown, error)
        or shown_by_tables(source, shown, error)
    )


def shown_by_sizes(source: "Source", shown: "Shown", error: Exception) -> Failed | None:
    """Where the module itself refuses sizes of the proof, which an axis of other sizes has not."""
    if isinstance(error, RefusedSizesError) and source.on_refused is not None:
        change = source.on_refused(error.sizes)
        if change is not None and change.added_to(shown) != shown:
            return Failed(error, change.added_to(shown), change.remarks)
    return None


def shown_by_tables(source: "Source", shown: "Shown", error: Exception) -> Failed | None:
    """Where a graph that makes a table of an earlier call failed: one that reads it may not."""
    if getattr(source.module, "makes_tables", False) and not shown.keeps_tables:
        return Failed(error, replace(shown, keeps_tables=True))
    return None


def _larger(source: "Source", built: "list[Built]", shown: "Shown", error: Exception) -> Failed | None:
    """Where a line takes another branch for larger inputs, which may be right for all.

    ``if length <= self.filled``: what an earlier call filled is read up to there, and computed beyond.
    """
    sides = {axis: side for graph in built for axis, side in graph.written.other_sides.items()}
    limits = source.limits
    most = {**limits.max_sizes, **dict.fromkeys(limits.limited_axes, limits.max_length)}
    traced = {axis: multiple(side.size + 1, limits.size_steps.get(axis, 1)) for axis, side in sides.items()}
    traced = {axis: size for axis, size in traced.items() if size <= (most.get(axis) or size)}
    if traced.keys() - shown.traced.keys():
        remarks = {
            axis: f"traced at {axis} {size}, where {sides[axis].line} goes on as for every input of more than "
            f"{sides[axis].size - 1}"
            for axis, size in traced.items()
        }
        return Failed(error, replace(shown, traced={**traced, **shown.traced}), remarks)
    return None


def _from_least(source: "Source", built: "list[Built]", shown: "Shown", error: Exception) -> Failed | None:
    """Where a line takes another branch for smaller inputs, at which the graph does not run, or is wrong for images.

    ``if length <= padding``: what is too short to be padded by reflection is extended first. A graph that gives other
    values for short sequences is a failure: its module means something else by them.
    """
    from posexport.proof.axes import TooSmallError

    points = error.report.points if isinstance(error, MissedError) else []
    sides = {axis: side for graph in built for axis, side in graph.written.least.items()}
    does_not_run = any((point.note or "").startswith(NOT_RUN) for point in points)
    if not isinstance(error, TooSmallError) and not does_not_run and not _small_alone(points, sides):
        return None
    accepted = {SEQUENCE: source.limits.min_length, **source.limits.min_sizes}
    least = {axis: side.size for axis, side in sides.items() if side.size > accepted.get(axis, 1) and axis != BATCH}
    if not least.keys() - shown.least.keys():
        return None
    remarks = {
        axis: f"{axis} is at least {size}: {sides[axis].line} treats smaller sizes in another way, and a graph has "
        "one of the two"
        for axis, size in least.items()
    }
    return Failed(error, replace(shown, least={**shown.least, **least}), remarks)


def _small_alone(points: "Sequence[Point]", sides: "Mapping[str, OtherSide]") -> bool:
    """Whether nothing but images with a side below the least is wrong, and others are right."""
    wrong = [point for point in points if point.verdict == "fail"]
    small = [
        point for point in points if any(size < sides[axis].size for axis, size in _sides_of(point) if axis in sides)
    ]
    return (
        bool(wrong)
        and all(point in small for point in wrong)
        and any(point.verdict == "pass" for point in points if point not in small)
    )


def _sides_of(point: "Point") -> "list[tuple[str, int]]":
    return [*zip((HEIGHT, WIDTH), point.image or (), strict=False), *point.sizes]


def _in_steps(source: "Source", built: "list[Built]", shown: "Shown", error: Exception) -> Failed | None:
    """Where a line branches by a remainder that the source's steps do not settle."""
    lines = {axis: step for graph in built for axis, step in graph.written.steps.items()}
    before = source.limits.size_steps
    steps = {axis: lcm(step.divisor, before.get(axis, 1)) for axis, step in lines.items()}
    if any(step != before.get(axis, 1) for axis, step in steps.items()):
        remarks = {
            axis: f"{axis} must be a multiple of {step}: {lines[axis].line} treats other sizes in another way, and a "
            "graph has one of the two"
            for axis, step in steps.items()
        }
        return Failed(error, replace(shown, steps={**shown.steps, **steps}), remarks)
    return None


def shown_by_trace(source: "Source", shown: "Shown", error: "FixedAxisError") -> Failed | None:
    """Where the trace fixed an axis, of which a longer input has more parts, or that the module may do without.

    A trace of 11 tokens in one group of 16 fixes the groups at 1, which broadcast; one of 27 tokens does not. An axis
    that may have one size is one like channels or frames: its input has another dynamic axis than the batch, as the
    tokens of codes [B, K, T]; or it is an image's, whose sides must be equal; or the module takes few sizes of it, as
    those that are cut into a fixed number of patches.
    """
    axes = next(spec.axes for spec in source.inputs if spec.name == error.input_name)
    axis, place = axes[error.number], (error.input_name, error.number)
    members = {(spec.name, n) for spec in source.inputs for n, other in enumerate(spec.axes) if other == axis}
    others = [other for other in axes if isinstance(other, str) and other not in (axis, BATCH)]
    least, most = source.limits.min_sizes.get(str(axis), 1), source.limits.max_sizes.get(str(axis))
    takes_few = most is not None and most < 2 * least
    is_image = len(axes) >= _OF_IMAGES
    larger, longest = error.larger, source.limits.max_length if axis in source.limits.limited_axes else most
    if source.by_trial and larger is not None and larger <= (longest or larger) and axis not in shown.traced:
        sentence = f"traced at {axis} {larger}: {error.line or 'the module'} makes more than one part of it there"
        return Failed(error, replace(shown, traced={str(axis): larger, **shown.traced}), {str(axis): sentence})
    if source.by_trial and (others or is_image or takes_few) and axis != BATCH and place not in shown.fixed:
        sentence = (
            f"axis {error.number} of {error.input_name} has the example's size in the bundle: "
            f"{error.line or 'the module'} makes a constant of it"
        )
        return Failed(error, replace(shown, fixed=shown.fixed | members), {str(place): sentence})
    return None

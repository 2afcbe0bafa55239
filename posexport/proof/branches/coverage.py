"""The points that run every branch of the graph: the grid's, and the first larger ones that add a branch.

A branch that no point reaches is not proven, however many points pass. Imports no torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from pathlib import Path

import msgspec

from posexport.base.sizes import frames, multiple, samples
from posexport.base.spec import ENCODER_SEQUENCE, SEQUENCE, Padding, masked_axis
from posexport.base.system.machine import readable
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.branches.probes import Branch, Watched, has_branches
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import Budget, GridPoint
from posexport.proof.percent import cost
from posexport.proof.proof import Outcome, Progress, Proof
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, in_calls
from posexport.run.bundle.manifest import BranchRun
from posexport.sources.source import Source

#: tiled attention cuts queries, and fills up keys, in multiples of this (`posexport.graph.ops.skew`)
_STEP = 32
#: the first length with more than one tile and no key that fills up
_FIRST = 160
#: no branch depends on more tokens than these in a row, or on more rows
_LONGEST, _MOST_ROWS = 1 << 15, 1 << 10
#: bytes that a point with more rows may need: four times the largest bias that is held as a whole
#: (`posexport.graph.lowering.bias`), which is the largest number of scores that a branch depends on
_ROWS_ROOM = 2 << 30
#: points between two that are tried in place of one that needs much memory
_HALVINGS = 4
#: nor on images of more than this many times a side of the grid's
_SCALES = (2, 3, 4, 6, 8, 12, 16, 24, 32)


class Coverage(msgspec.Struct):
    """``reached``: the first point that ran each branch; ``lacking``: why none did. ``added``: not in the grid."""

    branches: list[Branch]
    reached: dict[Branch, GridPoint] = {}
    added: list[GridPoint] = []
    lacking: dict[Branch, str] = {}

    def runs(self, skipped: Sequence[GridPoint] = ()) -> list[BranchRun]:
        """For the report. A branch that only ``skipped`` points reach was not proven."""
        runs = []
        for branch in self.branches:
            point = self.reached.get(branch)
            note = self.lacking.get(branch, "")
            if point is not None and point in skipped:
                point, note = None, f"{point} was skipped"
            runs.append(BranchRun(branch=str(branch), covered_by=None if point is None else str(point), note=note))
        return runs


@dataclass(frozen=True)
class Branches:
    """The check: every branch of the graph, with the point that ran it."""

    coverage: Coverage

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with all branches; those that only skipped points reach were not proven."""
        del proof
        return msgspec.structs.replace(report, coverage=self.coverage.runs(list(outcome.skipped)))


def cover(
    source: Source,
    model: Path | bytes,
    points: Sequence[GridPoint],
    *,
    provider: str,
    threads: int,
    budget: Budget,
    progress: Progress = lambda *_: None,
) -> Coverage:
    """Run a copy of ``model`` that says which branches run, at points of the grid and then at larger ones."""
    if not has_branches(model, source.part_specs):
        return Coverage([])
    watched = Watched.of(source, model, source.part_specs, provider=provider, threads=threads)
    return _Search(source, watched, points, budget, progress).run()


class _Search:
    def __init__(
        self,
        source: Source,
        watched: Watched,
        points: Sequence[GridPoint],
        budget: Budget,
        progress: Progress,
    ) -> None:
        self._source, self._watched = source, watched
        # as it is now: what the search itself takes must not change which points it tries
        self._budget, self._limit, self._progress = budget, budget.room(), progress
        self._coverage = Coverage(sorted(watched.branches))
        #: bytes of the smallest point that was too large to try, and those that it might have
        self._needs: tuple[int, int] | None = None
        self._failure = ""
        self._points = [point for point in points if not point.must_be_rejected and self._fits(point)]

    def run(self) -> Coverage:
        for point in _telling(self._points):
            self._try(point)
        # in turn, so that no way to call the model grows far beyond the size at which another one is enough
        before = dict[int, GridPoint]()
        for grown in zip_longest(*map(self._growth, self._kinds()), self._more_images()):
            if not self._missing:
                break
            for way, point in enumerate(grown):
                if point is not None and self._try(point):
                    self._add(self._smaller(before.get(way), point))
                if point is not None:
                    before[way] = point
        for point in self._points:
            self._try(point)
        for branch in self._missing:
            self._coverage.lacking[branch] = self._reason()
        return self._coverage

    @property
    def _missing(self) -> list[Branch]:
        return [branch for branch in self._coverage.branches if branch not in self._coverage.reached]

    def _reason(self) -> str:
        if self._failure:
            return self._failure
        if self._needs is not None:
            need, limit = map(readable, self._needs)
            return f"needs more than {limit}, {need} at the next size"
        return "no length, batch or padding that was tried reaches it"

    def _fits(self, point: GridPoint) -> bool:
        return self._within(self._budget.at_most(point), self._limit)

    def _within(self, need: int, most: int) -> bool:
        limit = min(self._limit, most)
        if need > limit:
            self._needs = min(self._needs or (need, limit), (need, limit))
        return need <= limit

    def _try(self, point: GridPoint) -> bool:
        """Whether a point ran a branch that none did before. Nothing is run where all of them did."""
        if not self._missing:
            return False
        self._progress(len(self._coverage.reached), len(self._coverage.branches), f"branches of the graph, at {point}")
        source, before = self._source, set(self._watched.ran)
        try:
            in_calls(self._watched, draw(point, source.inputs), source, point.calls)
        except RunError as err:
            # the shipped graph fails there too and reports it, or this copy alone fails
            self._failure = f"ONNX Runtime failed at {point}: {err}"
            self._add(point)
            return False
        new = self._watched.ran - before
        self._coverage.reached |= dict.fromkeys(sorted(new), point)
        return bool(new)

    def _smaller(self, before: GridPoint | None, point: GridPoint) -> GridPoint:
        """A point between ``before`` and ``point`` that runs the same new branches, where ``point`` needs much memory.

        The definition needs it several times, in float64.
        """
        if before is None or self._budget.fits_easily(point):
            return point
        new = {branch for branch, reached in self._coverage.reached.items() if reached == point}
        for _ in range(_HALVINGS):
            middle = self._between(before, point)
            if middle in (before, point) or (ran := self._ran(middle)) is None:
                break
            if not new <= ran:
                before = middle
                continue
            point = middle
            self._coverage.reached |= dict.fromkeys(sorted(new), point)
        return point

    def _between(self, one: GridPoint, other: GridPoint) -> GridPoint:
        """The point in the middle, in all that differs."""
        steps = self._source.limits.size_steps

        def middle(axis: str, a: int, b: int) -> int:
            return multiple((a + b) // 2, steps.get(axis, 1))

        far = other.encoder_length
        return msgspec.structs.replace(
            other,
            batch=(one.batch + other.batch) // 2,
            length=middle("" if other.length_estimated else SEQUENCE, one.length, other.length),
            encoder_length=None if far is None else middle(ENCODER_SEQUENCE, one.encoder_length or far, far),
            sizes=tuple((axis, middle(axis, dict(one.sizes).get(axis, size), size)) for axis, size in other.sizes),
        )

    def _ran(self, point: GridPoint) -> set[Branch] | None:
        """The branches that run at a point; None where the graph fails."""
        before = set(self._watched.ran)
        self._watched.ran.clear()
        try:
            in_calls(self._watched, draw(point, self._source.inputs), self._source, point.calls)
        except RunError:
            return None
        finally:
            ran = set(self._watched.ran)
            self._watched.ran.update(before)
        return ran

    def _add(self, point: GridPoint) -> None:
        if point not in self._points and point not in self._coverage.added:
            self._coverage.added.append(point)

    def _kinds(self) -> Iterator[GridPoint]:
        """One point of each kind to grow: without padding first, then as the model takes it."""
        limits = self._source.limits
        masked = any(masked_axis(spec) is not None for spec in self._source.inputs)
        paddings: list[Padding] = ["none", *limits.paddings] if masked else ["none"]
        if "right" in paddings:
            # of a few tokens it may be more, and leaves the first one
            paddings.append("ragged-right")
        for padding in dict.fromkeys(paddings):
            similar = [p for p in self._points if not (p.calls or p.cached or p.position_ids_given)]
            # also paddings that the chosen points leave out
            candidates = [p for p in similar if p.padding == padding] or [p for p in similar if p.padding == "none"]
            if candidates:
                largest = max(candidates, key=lambda point: (-point.batch, point.length))
                if not largest.length_estimated:
                    # scores of cross attention are of tokens and of what an image or sound becomes
                    largest = msgspec.structs.replace(largest, sizes=_largest_sizes(similar))
                largest = msgspec.structs.replace(largest, padding=padding)
                yield largest
                # a graph that leaves much padding out computes little
                if padding == "right":
                    yield msgspec.structs.replace(largest, padding="few")

    def _growth(self, point: GridPoint) -> Iterator[GridPoint]:
        """Longer inputs up to the limit, then more rows of the longest.

        No smaller size in between is searched for: a graph that computes small inputs in one step needs the most memory
        just below the size from which on it does not.
        """
        if point.image is not None or (point.sizes and not self._tokens()):
            largest = self._source.limits.max_sizes
            scaled = dict.fromkeys(_scaled(point, factor, largest) for factor in _SCALES)
            yield from takewhile(self._fits_size, scaled)
            yield from self._more_rows(point)
            return
        longer = list(takewhile(self._fits_size, (self._sized(point, tokens) for tokens in self._tokens())))
        yield from longer
        if not longer:
            yield from self._more_rows(point)
            return
        limits = self._source.limits
        longest, least = (frames(n, limits.convolutions) for n in (longer[-1].length, limits.min_length))
        for count in dict.fromkeys((longest, max(longest // _STEP * _STEP, least, 1))):
            yield from self._more_rows(self._sized(point, count))

    def _more_images(self) -> Iterator[GridPoint]:
        """Larger images beside the fewest tokens, then more rows: scores of an encoder before a decoder."""
        sized = [p for p in self._points if p.sizes and not (p.length_estimated or p.calls or p.cached)]
        if sized:
            sizes = _largest_sizes(sized)
            fewest = min(sized, key=lambda point: (point.batch, point.length))
            fewest = msgspec.structs.replace(fewest, sizes=sizes)
            limits = self._source.limits
            of_image = math.prod(size for _, size in sizes) / limits.elements_per_token
            # as long as what the image becomes, so that there is memory for it
            image = msgspec.structs.replace(fewest, length=max(1, int(of_image)))
            scaled = (_scaled(image, factor, limits.max_sizes) for factor in _SCALES)
            for larger in (scaled, _rows(image)):
                fit = takewhile(lambda point: self._fits_size(point, fewest.length), larger)
                yield from (msgspec.structs.replace(point, length=fewest.length) for point in fit)

    def _fits_size(self, point: GridPoint, length: int | None = None) -> bool:
        """Whether a size may be tried, which is run with ``length``, if that is given.

        In a user's module, and in an encoder of images or sound, no branch depends on more scores than by more rows.
        What a call holds tells, where it is known: sizes of images may be far more than tokens of attention.
        """
        run = point if length is None else msgspec.structs.replace(point, length=length)
        if self._source.kind == "python":
            return self._within(self._budget.of_call(run), _ROWS_ROOM)
        fits = self._fits(point) if length is None else self._within(self._budget.at_most(point), _ROWS_ROOM)
        return fits or (self._budget.held(run) is not None and self._within(self._budget.of_call(run), _ROWS_ROOM))

    def _more_rows(self, point: GridPoint) -> Iterator[GridPoint]:
        return takewhile(lambda point: self._within(self._budget.of_call(point), _ROWS_ROOM), _rows(point))

    def _tokens(self) -> list[int]:
        """Numbers of tokens to try, ascending; none where the length cannot be chosen."""
        if not any(SEQUENCE in spec.axes for spec in self._source.inputs):
            return []
        limits = self._source.limits
        limited = {SEQUENCE, ENCODER_SEQUENCE} & set(limits.limited_axes)
        limit = None if limits.max_length is None or not limited else frames(limits.max_length, limits.convolutions)
        doubled = [1 << n for n in range(8, _LONGEST.bit_length())]
        return sorted(n for n in {_FIRST, *doubled, *([limit] if limit else [])} if n <= (limit or _LONGEST))

    def _sized(self, point: GridPoint, tokens: int) -> GridPoint:
        """``point`` with that number of tokens, from the fewest samples where convolutions make them."""
        limits = self._source.limits
        far = point.encoder_length
        if far is not None:
            limit = limits.max_length if ENCODER_SEQUENCE in limits.limited_axes else None
            far = tokens if limit is None else min(tokens, limit)
        return msgspec.structs.replace(point, length=samples(tokens, limits.convolutions), encoder_length=far)


def _largest_sizes(points: Sequence[GridPoint]) -> tuple[tuple[str, int], ...]:
    return max((point.sizes for point in points), key=lambda sizes: math.prod(size for _, size in sizes))


def _rows(point: GridPoint) -> Iterator[GridPoint]:
    """``point`` with more rows, each time twice as many."""
    batches = (point.batch << n for n in range(1, _MOST_ROWS.bit_length()) if point.batch << n <= _MOST_ROWS)
    return (msgspec.structs.replace(point, batch=batch) for batch in batches)


def _scaled(point: GridPoint, factor: int, largest: Mapping[str, int]) -> GridPoint:
    """``point`` with ``factor`` times the sides of its image and the patches in both directions."""
    if point.image is None:
        sizes = {axis: min(size * factor, largest.get(axis, size * factor)) for axis, size in point.sizes}
        grown = math.prod(size / before for size, (_, before) in zip(sizes.values(), point.sizes, strict=True))
        return msgspec.structs.replace(point, sizes=tuple(sizes.items()), length=int(point.length * grown))
    height, width = point.image
    return msgspec.structs.replace(point, image=(height * factor, width * factor), length=point.length * factor**2)


def _telling(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Of each way to call the model the smallest point, the smallest with tiled attention, the largest; by cost."""
    ways: dict[object, list[GridPoint]] = {}
    for point in points:
        way = (point.padding, len(point.calls), point.cached > 0, point.position_ids_given)
        ways.setdefault(way, []).append(point)

    tiled = ([point for point in group if point.tokens > BLOCK] for group in ways.values())
    chosen = [min(group, key=cost) for group in (*ways.values(), *tiled) if group]
    chosen += [max(group, key=cost) for group in ways.values()]
    return sorted(dict.fromkeys(chosen), key=cost)

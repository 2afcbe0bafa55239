"""The positions of a graph as small drawings. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from posexport.inspect.pages.svg import Array, Drawing, Scale, colour_limit, heat_map
from posexport.inspect.report.positions import Positions

#: lines of one drawing that colours can tell apart; of more heads, a map
_LINES = 6
#: drawings of one kind that are shown, and maps of one bias
_SHOWN, _MAPS = 4, 12
#: smaller angles are no rotation
_STILL = 1e-9


@dataclass(frozen=True)
class Figure:
    """Drawings that show one value. ``maps``: pictures by their captions, for a grid; ``key``: lines by name."""

    title: str
    caption: str
    drawings: list[str] = field(default_factory=list)
    maps: list[tuple[str, str]] = field(default_factory=list)
    key: list[str] = field(default_factory=list)


def figures(drawn: Sequence[Positions]) -> list[Figure]:
    """A figure for each value, at most `_SHOWN` of a kind; the last of them says how many were left out."""
    shown: list[Figure] = []
    for kind, draw in _KINDS.items():
        of_kind = [one for one in drawn if one.kind == kind]
        drawings = [draw(one) for one in of_kind[:_SHOWN]]
        if left := len(of_kind[_SHOWN:]):
            drawings[-1] = replace(drawings[-1], caption=f"{drawings[-1].caption} {left} more like it are not shown.")
        shown += drawings
    return shown


def _nodes(one: Positions) -> str:
    return f"read by {one.uses} node{'s' if one.uses > 1 else ''}"


def _colours(values: Array) -> str:
    """What the colours of a map mean; a few values may lie beyond its strongest colour."""
    limit, largest = colour_limit(values), float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    beyond = f", which a few values up to {largest:.3g} have too" if largest > limit else ""
    return f"blue is below 0, red above; the strongest colour is {limit:.3g}{beyond}"


def _cut(maps: Array) -> str:
    beyond = any(colour_limit(values) < np.abs(values[np.isfinite(values)]).max(initial=0.0) for values in maps)
    return " A few values are beyond the strongest colour of their map." if beyond else ""


def _distance(one: Positions) -> Figure:
    """A line a head, or a map of heads and distances."""
    heads, count = one.values.shape
    distances = range(one.first, one.first + count)
    finite = one.values[np.isfinite(one.values)]
    name = f"Bias by distance, {heads} head{'s' if heads > 1 else ''}"
    caption = f"Added to the scores of a query and a key, {_nodes(one)}."
    if not np.isfinite(one.values).all():
        caption += " Distances without a line are masked."
    if heads > _LINES:
        drawing = Drawing(name, _span(distances), Scale(heads - 0.5, -0.5, whole=True), "query minus key", "head")
        drawing.image(one.values)
        return Figure(name, f"{caption} In the map {_colours(one.values)}.", [drawing.svg()])
    y = Scale(*_padded(finite))
    drawing = Drawing(name, _span(distances), y, "query minus key", "added to the score")
    for head, values in enumerate(one.values):
        for run in _runs([(x, float(v)) for x, v in zip(distances, values, strict=True)]):
            drawing.line(run, f"c{head}", f"head {head}")
    return Figure(name, caption, [drawing.svg()], key=[f"head {head}" for head in range(heads)] if heads > 1 else [])


def _pairs(one: Positions) -> Figure:
    heads = len(one.values)
    maps = [(f"head {n}" if heads > 1 else "", heat_map(values)) for n, values in enumerate(one.values[:_MAPS])]
    caption = (
        f"Added to the scores: queries from top to bottom, keys from left to right; grey is masked; {_nodes(one)}."
        f"{_cut(one.values[:_MAPS])}"
    )
    return Figure(f"Bias of pairs, {heads} head{'s' if heads > 1 else ''}", caption, maps=maps)


def _grid(one: Positions) -> Figure:
    heads, rows, columns = one.values.shape
    maps = [(f"head {n}", heat_map(values)) for n, values in enumerate(one.values[:_MAPS])]
    caption = (
        f"Added to the scores by offset: {rows // 2} rows up and down, {columns // 2} columns to the left and "
        f"right, offset 0 in the middle. Blue is below 0, red above; {_nodes(one)}.{_cut(one.values[:_MAPS])}"
    )
    return Figure(f"Bias by offset in the image, {heads} heads", caption, maps=maps)


def _rotation(one: Positions) -> Figure:
    """The wavelengths of the pairs of channels, and the cosines of the fastest, a middle and the slowest pair."""
    turns = _step(one.values)
    moving = [n for n, angle in enumerate(turns) if angle > _STILL]
    name = f"Rotation of queries and keys, {one.values.shape[1]} pairs of channels"
    still = one.values.shape[1] - len(moving)
    caption = f"How far a pair turns from one position to the next, as the positions of a full turn; {_nodes(one)}."
    caption += f" {still} pairs do not turn." if still else ""
    if not moving:
        return Figure(name, caption)
    waves = [2 * np.pi / turns[n] for n in moving]
    lengths = Drawing(
        name,
        Scale(-0.5, one.values.shape[1] - 0.5, whole=True),
        Scale(min(waves) / 1.5, max(waves) * 1.5, log=True),
        "pair of channels",
        "positions of a turn",
    )
    lengths.line([(n, float(wave)) for n, wave in zip(moving, waves, strict=True)], "c0")
    dots = [(float(n), float(w), f"pair {n}: a turn in {w:.3g} positions") for n, w in zip(moving, waves, strict=True)]
    lengths.dots(dots, "c0")
    chosen = list(dict.fromkeys([moving[0], moving[len(moving) // 2], moving[-1]]))
    cosines = Drawing(
        f"{name}: cosines", Scale(0, len(one.values) - 1, whole=True), Scale(-1.1, 1.1), "position", "cosine"
    )
    for number, pair in enumerate(chosen):
        points = [(t, float(np.cos(angle))) for t, angle in enumerate(one.values[:, pair])]
        cosines.line(points, f"c{number}", f"pair {pair}")
    return Figure(name, caption, [lengths.svg(), cosines.svg()], key=[f"pair {pair}" for pair in chosen])


def _step(angles: Array) -> Array:
    """The angle of one step of each pair: of an image, pairs turn with rows or with columns."""
    steps = np.abs((angles[1:] - angles[:1] + np.pi) % (2 * np.pi) - np.pi)
    first = (steps > _STILL).argmax(axis=0)
    return np.asarray(np.take_along_axis(steps, first[None], axis=0)[0])


def _vectors(one: Positions) -> Figure:
    positions, channels = one.values.shape
    name = f"Vectors of positions, {channels} channels"
    drawing = Drawing(
        name, Scale(-0.5, positions - 0.5, whole=True), Scale(channels - 0.5, -0.5, whole=True), "position", "channel"
    )
    drawing.image(one.values.T)
    caption = f"Added to the tokens; {_colours(one.values)}; {_nodes(one)}."
    return Figure(name, caption, [drawing.svg()])


def _table(one: Positions) -> Figure:
    heads, count = one.values.shape
    rows = range(one.first, one.first + count)
    name = f"Learned vectors by distance, {count} rows"
    drawing = Drawing(
        name, _span(rows), Scale(*_padded(one.values, zero=True)), "query minus key" if one.first else "row", "length"
    )
    if heads > _LINES:
        drawing.line([(x, float(v)) for x, v in zip(rows, one.values.mean(0), strict=True)], "c0", "mean of heads")
        return Figure(name, f"The mean of {heads} heads of the lengths of the vectors; {_nodes(one)}.", [drawing.svg()])
    for head, values in enumerate(one.values):
        drawing.line([(x, float(v)) for x, v in zip(rows, values, strict=True)], f"c{head}", f"head {head}")
    caption = f"Lengths of the vectors that queries or keys are multiplied by; {_nodes(one)}."
    return Figure(name, caption, [drawing.svg()], key=[f"head {head}" for head in range(heads)] if heads > 1 else [])


#: in the order of the page
_KINDS = {
    "distance": _distance,
    "grid": _grid,
    "pairs": _pairs,
    "rotation": _rotation,
    "table": _table,
    "vectors": _vectors,
}


def _span(numbers: range) -> Scale:
    return Scale(numbers[0], numbers[-1], whole=True)


def _padded(values: Array, *, zero: bool = False) -> tuple[float, float]:
    """The ends of an axis with a little room; ``zero``: it begins there."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.5
    return (0.0 if zero and low >= 0 else low - room), high + room


def _runs(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Neighbouring points with finite numbers."""
    run: list[tuple[float, float]] = []
    for point in points:
        if np.isfinite(point[1]):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run

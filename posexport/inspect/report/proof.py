"""The proof as pictures: a map of lengths and paddings, and errors against their tolerances. Imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from posexport.base.spec import Padding, is_cache_output
from posexport.inspect.pages.svg import Drawing, Scale
from posexport.proof.grid.point import PADDINGS
from posexport.proof.report.points import Outcome, Point
from posexport.proof.report.report import Report

#: headings of columns
NAMES: dict[Padding, str] = {
    "none": "none",
    "right": "right",
    "left": "left",
    "ragged": "ragged",
    "ragged-right": "ragged right",
    "few": "one token",
}
#: upper ends of the shades of a cell that passed, as shares of its tolerance
SHADES = (0.1, 0.25, 0.5, 1.0)
#: verdicts of a cell, the worst first
_WORST: tuple[Outcome, ...] = ("fail", "skipped", "rejected", "pass")
#: name for all cache tensors of a point together
_CACHE = "KV cache ({} tensors)"


class Detail(msgspec.Struct, frozen=True, array_like=True):
    """A comparison of one output at one point, as the page shows it after a click."""

    where: str
    output: str
    error: str
    pytorch: str
    tolerance: str
    share: str
    verdict: str
    note: str


@dataclass(frozen=True)
class Cell:
    """All comparisons with one size and one padding. ``shade``: the class of its colour; ``words``: what it shows."""

    key: str
    words: str
    shade: str
    label: str


@dataclass(frozen=True)
class Row:
    """One size. A cell is None where nothing was compared with that padding."""

    size: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class Map:
    """A table of sizes and paddings. ``what``: how the tokens were read."""

    what: str
    size_name: str
    paddings: list[str]
    rows: list[Row]


@dataclass(frozen=True)
class Pictures:
    """The maps, the chart as markup, and the details of every cell by its key.

    ``beyond``: the chart has an area of refused lengths.
    """

    maps: list[Map]
    chart: str
    details: dict[str, list[Detail]]
    beyond: bool


def pictures(report: Report, *, limit: int | None = None) -> Pictures:
    """The pictures of a proof. ``limit``: tokens of the longest input, beyond which the graph refuses."""
    details: dict[str, list[Detail]] = {}
    whole = [point for point in report.points if not point.calls]
    cached = [point for point in report.points if point.calls]
    maps = [
        _map(points, what, prefix, details)
        for points, what, prefix in (
            (whole, "All tokens in one call", "a"),
            (cached, "Through the KV cache: a prompt, then chunks and single tokens", "b"),
        )
        if points
    ]
    beyond = limit is not None and any(p.verdict == "rejected" and p.length > limit for p in report.points)
    return Pictures(maps, _chart(report, limit if beyond else None), details, beyond)


def _map(points: Sequence[Point], what: str, prefix: str, details: dict[str, list[Detail]]) -> Map:
    paddings = [padding for padding in PADDINGS if any(point.padding == padding for point in points)]
    sizes = sorted({(point.length, point.image or (), point.sizes) for point in points})
    rows = []
    for number, size in enumerate(sizes):
        here = [point for point in points if (point.length, point.image or (), point.sizes) == size]
        cells: list[Cell | None] = []
        for padding in paddings:
            several = [point for point in here if point.padding == padding]
            key = f"{prefix}{number}-{padding}"
            cells.append(_cell(several, key, padding) if several else None)
            if several:
                details[key] = list(_details(several))
        rows.append(Row(here[0].point.size, cells))
    is_image, estimated = points[0].image is not None, points[0].length_estimated
    name = "image" if is_image else "size" if estimated else "length"
    return Map(what, name, [NAMES[padding] for padding in paddings], rows)


def _cell(points: Sequence[Point], key: str, padding: Padding) -> Cell:
    verdict = next(word for word in _WORST if any(point.verdict == word for point in points))
    worst = max((point for point in points if point.tolerance is not None), key=lambda p: p.ratio, default=None)
    words = {"fail": "fail", "skipped": "skipped", "rejected": "refused", "pass": "ok"}[verdict]
    shade: str = verdict
    meaning = words
    if worst is not None and worst.error is not None:
        words = f"{worst.error:.1e}".replace("e-0", "e-") if worst.error else "0"
        meaning = f"error {words}, {_percent(worst.ratio)} of the tolerance"
        if verdict == "pass":
            shade = f"pass{next((n for n, end in enumerate(SHADES) if worst.ratio <= end), len(SHADES) - 1)}"
        else:
            meaning += f", {verdict}"
    padded = "no padding" if padding == "none" else f"padding: {NAMES[padding]}"
    return Cell(key, words, shade, f"{points[0].point.size}, {padded}: {meaning}")


def _details(points: Iterable[Point]) -> Iterable[Detail]:
    """One line an output; cache tensors of a point are one line, about the one nearest to its tolerance."""
    by_point: dict[object, list[Point]] = {}
    for point in points:
        by_point.setdefault(point.point, []).append(point)
    for several in by_point.values():
        cache = [point for point in several if is_cache_output(point.output)]
        for point in several:
            if point not in cache:
                yield _detail(point, point.output)
        if cache:
            worst = max(cache, key=lambda p: (p.verdict == "fail", p.ratio))
            yield _detail(worst, _CACHE.format(len(cache)) if len(cache) > 1 else worst.output)


def _detail(point: Point, output: str) -> Detail:
    return Detail(
        where=point.where,
        output=output or "refusal of the input",
        error=_number(point.error),
        pytorch=_number(point.worst_baseline_error),
        tolerance=_number(point.tolerance),
        share="" if point.tolerance is None or point.error is None else _percent(point.ratio),
        verdict={"rejected": "refused, as it must be"}.get(point.verdict, point.verdict),
        note=point.note,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}" if value else "0"


def _percent(share: float) -> str:
    percent = 100 * share
    return "under 0.1%" if percent < 0.1 else f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def _chart(report: Report, limit: int | None) -> str:
    """Error against length: the point nearest to its tolerance at each, PyTorch's error there, and the tolerance."""
    by_length: dict[int, list[Point]] = {}
    for point in report.points:
        by_length.setdefault(point.length, []).append(point)
    worst: list[Point] = []
    for length in sorted(by_length):
        compared = [p for p in by_length[length] if p.tolerance is not None and p.error is not None]
        worst += [max(compared, key=lambda p: p.ratio)] if compared else []
    if len(worst) < 2:  # no line
        return ""
    numbers = [n for p in worst for n in (p.error, p.worst_baseline_error, p.tolerance) if n]
    if not numbers:
        return ""
    longest = max(by_length)
    end = longest * 1.25 if limit is not None else max(longest, 2)
    drawing = Drawing(
        f"Error by length, from {worst[0].length} to {worst[-1].length}, with its tolerance",
        Scale(max(1, min(by_length)), end, log=True),
        Scale(min(numbers) / 2, max(numbers) * 3, log=True),
        "length in tokens" if not worst[0].image else "patches of the image",
        "relative error",
    )
    if limit is not None:
        drawing.band(limit, end, "refused")
    drawing.line([(p.length, p.tolerance or 1) for p in worst], "tolerance", "tolerance")
    drawing.line([(p.length, p.worst_baseline_error) for p in worst if p.worst_baseline_error], "pytorch", "PyTorch")
    drawing.line([(p.length, p.error) for p in worst if p.error], "error")
    for failed in (False, True):
        here = [p for p in worst if (p.verdict == "fail") == failed and p.error]
        labels = [(p.length, p.error or 0.0, f"{p.where}: error {p.error:.1e}") for p in here]
        drawing.dots(labels, "bad" if failed else "error")
    return drawing.svg()

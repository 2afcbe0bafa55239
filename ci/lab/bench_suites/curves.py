"""Time and memory of one layer against length, with the slopes that they may have."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posexport.inspect.bench.records import Document, Figure, Result
from posexport.inspect.bench.tables import saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: fewer lengths than these are bars
_LEAST = 4
Curve = list[tuple[int, float]]


def is_curve(results: Sequence[Result]) -> bool:
    """Whether one model's calls without a past were measured at enough lengths."""
    lengths = {result.point.new for result in results if not result.point.past and result.point.batch == 1}
    return len({result.model for result in results}) == 1 and len(results) == len(lengths) >= _LEAST


def milliseconds(figure: Figure) -> float | None:
    return figure.ms


def megabytes(figure: Figure) -> float | None:
    """Memory above inputs and outputs."""
    return None if figure.above is None else figure.above / 1e6


def curve(results: Sequence[Result], candidate: str, value: Callable[[Figure], float | None]) -> Curve:
    """Lengths and values of a candidate, where it gave right ones."""
    figures = [(result.point.new, f) for result in results for f in result.figures if f.candidate == candidate]
    values = [(length, value(figure)) for length, figure in figures if not figure.wrong]
    return sorted((length, v) for length, v in values if v is not None and v > 0)


def exponent(points: Curve, doublings: int = 2) -> float | None:
    """The power of the length by which the last ``doublings`` of a curve grow; None where there are fewer points."""
    if len(points) <= doublings:
        return None
    (short, low), (long, high) = points[-1 - doublings], points[-1]
    return math.log(high / low) / math.log(long / short)


def draw(document: Document, suffix: str) -> bytes:
    """Both panels, log-log; dotted and dashed lines grow with the length and with its square."""
    from matplotlib.figure import Figure as Picture

    results = [result.quiet for result in document.results]
    names = list(dict.fromkeys(figure.candidate for result in results for figure in result.figures))
    picture = Picture(figsize=(9, 4.5), layout="constrained")
    labels = {"milliseconds": milliseconds, "MB above inputs and outputs": megabytes}
    for axes, (label, value) in zip(picture.subplots(1, 2), labels.items(), strict=True):
        _panel(axes, {name: points for name in names if (points := curve(results, name, value))})
        axes.set_ylabel(label, fontsize=8)
    noisy = ", ".join(str(result.point.new) for result in results if not result.valid)
    picture.suptitle(f"{results[0].model}{f' (not valid, not drawn: {noisy})' if noisy else ''}", fontsize=9)
    return saved(picture, document, suffix)


def _panel(axes: "Axes", curves: dict[str, Curve]) -> None:
    axes.set_xlabel("length", fontsize=8)
    if not curves:
        return
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    # the guides end where the longest curve ends: what grows slower lies above them
    longest = max(reversed(curves.values()), key=lambda points: points[-1][0])
    last, value = longest[-1]
    for slope, style, label in ((1, ":", "length"), (2, "--", "length squared")):
        ends = [value * (longest[0][0] / last) ** slope, value]
        axes.plot([longest[0][0], last], ends, style, color="gray", linewidth=0.8, label=label)
    lengths = sorted({length for points in curves.values() for length, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, labels=[str(length) for length in lengths])
    axes.set_yscale("log")
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7)

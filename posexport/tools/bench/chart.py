"""A benchmark's results as bars."""

import io
from typing import TYPE_CHECKING

from posexport.system.extras import require
from posexport.tools.bench.records import Document, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(document: Document, suffix: str) -> bytes:
    """One panel a result: the median of each candidate with its quartiles, the baseline as a line.

    Points that are not valid are named and not drawn.
    """
    require("a chart", "matplotlib")
    from matplotlib.figure import Figure

    results = [result.quiet for result in document.results]
    tall = sum(len(result.figures) for result in results) * 0.3 + len(results)
    picture = Figure(figsize=(9, tall), layout="constrained")
    ratios = [len(result.figures) + 2 for result in results]
    panels = picture.subplots(len(results), height_ratios=ratios, squeeze=False)[:, 0]
    for axes, result in zip(panels, results, strict=True):
        _bars(axes, result)
    return saved(picture, document, suffix)


def saved(picture: "Figure", document: Document, suffix: str) -> bytes:
    """The picture as a file's content, with a line on where it was measured."""
    where = document.machine
    picture.supxlabel(f"{where.cpu}, {document.threads or where.cores} threads, commit {document.commit}", fontsize=7)
    data = io.BytesIO()
    picture.savefig(data, format=suffix[1:], dpi=150)
    return data.getvalue()


def _bars(axes: "Axes", result: Result) -> None:
    measured = [f for f in result.figures if f.ms is not None and f.low is not None and f.high is not None]
    ms = [f.ms or 0.0 for f in measured]
    spread = [[(f.ms or 0) - (f.low or 0) for f in measured], [(f.high or 0) - (f.ms or 0) for f in measured]]
    names = [f"{f.candidate}, WRONG" if f.wrong else f.candidate for f in measured]
    color = ["white" if f.wrong else "tab:blue" if f.by_posexport else "tab:gray" for f in measured]
    axes.barh(names, ms, xerr=spread, color=color, edgecolor=["tab:red" if f.wrong else "none" for f in measured])
    if measured and measured[0].candidate == result.baseline:
        axes.axvline(ms[0], color="black", linewidth=0.8, linestyle=":")
    axes.invert_yaxis()
    axes.set_title(f"{result.model}, {result.point.text}{'' if result.valid else ' (not valid)'}", fontsize=9)
    axes.set_xlabel("milliseconds", fontsize=8)
    axes.tick_params(labelsize=8)

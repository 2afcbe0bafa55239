"""A benchmark's results as text for a terminal and as bars. Imports no torch."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posexport.base.system.extras import require
from posexport.inspect.bench.records import Document, Figure, Held, Result
from posexport.inspect.bench.workers.mixed import LONGEST, ROWS

if TYPE_CHECKING:
    from matplotlib import figure as drawn
    from matplotlib.axes import Axes


def shown(document: Document) -> RenderableType:
    """A table a point, and what it was measured on."""
    where = document.machine
    memory = f", {where.memory / 2**30:.0f} GiB" if where.memory else ""
    load = "" if where.load is None else f", load {where.load:.1f}"
    versions = ", ".join(f"{name} {version}" for name, version in document.versions.items())
    lines = [
        f"{where.cpu}, {where.cores} cores{memory}{load}; {document.threads or 'all'} threads, {document.provider}, "
        f"{document.rounds} rounds, {document.seconds:.0f} s",
        f"commit {document.commit}, {document.created}; {versions}",
    ]
    mixed: list[RenderableType] = [_mixed(document.mixed)] if document.mixed else []
    tables: list[RenderableType] = [*(_table(result) for result in document.results), *mixed]
    advised = [Text(line, style="bold") for line in document.advice]
    return Group(*tables, *advised, *(Text(line, style="dim") for line in lines))


def _mixed(mixed: Sequence[Held]) -> Table:
    title = f"resident memory behind {mixed[0].calls} batches of 1 to {ROWS} rows of 1 to {LONGEST} tokens, MB"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("")
    for head in ("loaded", "held", "at most"):
        table.add_column(head, justify="right")
    for failure in mixed:
        cells = [f"{number / 1e6:.0f}" for number in (failure.loaded, failure.held, failure.most)]
        table.add_row(failure.candidate, *(cells if failure.failed is None else [f"does not work: {failure.failed}"]))
    return table


def _table(result: Result) -> Group:
    title = f"{result.model}, {result.point.text}; ratios to the baseline {result.baseline}"
    if not result.valid:
        title = f"NOT VALID, {result.reason}: {title}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("")
    for head in (
        "ms",
        "least",
        "quartiles",
        "ratio",
        "cpu ms",
        "peak MB",
        "above MB",
        "differs",
        "cosine",
        "nodes",
        "export s",
        "export MB",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for figure in result.figures:
        table.add_row(*_cells(figure))
    # below the table: candidates without figures, and why
    notes = [f"{f.candidate}: does not work: {f.failed}" for f in result.figures if f.failed is not None]
    notes += [f"{f.candidate}: not measured: {f.left_out}" for f in result.figures if f.left_out is not None]
    notes += [f"{f.candidate}: WRONG: {differs(f)}" for f in result.figures if f.wrong]
    return Group(table, *(Text(note) for note in notes))


def _cells(figure: Figure) -> list[str]:
    if figure.failed is not None or figure.left_out is not None:
        return [figure.candidate, "-"]
    # who computes something else is not fast, and takes no memory that could be compared
    times = [
        _number(figure.ms, ".2f"),
        _number(figure.least, ".2f"),
        f"{figure.low:.2f} - {figure.high:.2f}",
        _number(figure.to_baseline, ".2f"),
        _number(figure.cpu_ms, ".2f"),
        _number(figure.peak, ".0f", 1e6),
        _number(figure.growth if figure.above is None else figure.above, ".0f", 1e6),
    ]
    return [
        figure.candidate,
        *(["WRONG", *[""] * (len(times) - 1)] if figure.wrong else times),
        _number(figure.difference, ".0e"),
        _number(figure.cosine, ".4f"),
        _number(figure.nodes, ".0f"),
        _number(figure.export_seconds, ".1f"),
        _number(figure.export_peak, ".0f", 1e6),
    ]


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "" if value is None else f"{value / unit:{form}}"


def differs(figure: Figure) -> str:
    """Why an output is wrong."""
    whose = f"that of {figure.reference}" if figure.reference else "the first one with the same weights"
    if figure.difference is None:
        return f"its answer is not finite or has other axes than {whose}"
    # one digit: the points of a table differ in the second one, and share a reason
    return f"its answer differs from {whose} by {figure.difference:.1g} of the largest value"


def draw(document: Document, suffix: str) -> bytes:
    """One panel a result: the median of each candidate with its quartiles, the baseline as a line.

    Points that are not valid are named and not drawn.
    """
    require("a chart", "matplotlib")
    from matplotlib import figure

    results = [result.quiet for result in document.results]
    tall = sum(len(result.figures) for result in results) * 0.3 + len(results)
    picture = figure.Figure(figsize=(9, tall), layout="constrained")
    ratios = [len(result.figures) + 2 for result in results]
    panels = picture.subplots(len(results), height_ratios=ratios, squeeze=False)[:, 0]
    for axes, result in zip(panels, results, strict=True):
        _bars(axes, result)
    return saved(picture, document, suffix)


def saved(picture: "drawn.Figure", document: Document, suffix: str) -> bytes:
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

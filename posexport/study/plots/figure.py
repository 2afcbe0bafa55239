"""Groups of panels as one figure, which matplotlib lays out, and the figure as the bytes of a file.

One grid of two columns holds everything: rows of panels, and lines of text between them. Constrained layout makes room
for ticks, legends and colour bars and keeps the axes of a column aligned.
"""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posexport.base.system.extras import require
from posexport.inspect import pages
from posexport.study.plots.panels import Group, PanelRow, colour_bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

SUFFIXES = (".png", ".svg", ".html")
#: inches: the figure's width, a line of text, and the space for a row's title, ticks and labels
WIDTH, LINE, LABELS = 13.2, 0.25, 0.85
DOTS_PER_INCH = 110
FONTS: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
}
_CAPTION = "caption"


@dataclass(frozen=True)
class _Text:
    """Lines of text across the figure; ``style``: arguments of matplotlib's ``text``."""

    lines: Sequence[str]
    style: dict[str, Any] = field(default_factory=dict)

    @property
    def height(self) -> float:
        return LINE * len(self.lines)


def compose(groups: Sequence[Group], title: str, summary: str) -> "Figure":
    """The figure: a title, a sentence, and every group: its heading, its rows, its caption.

    Raises:
        PosexportError: matplotlib is not installed.
    """
    require("posexport plot", "matplotlib")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    entries: list[PanelRow | _Text] = [
        _Text(textwrap.wrap(title, 95), {"size": 15, "weight": "bold"}),
        _Text(textwrap.wrap(summary, 140), {"size": 11, "color": "#444444"}),
    ]
    for group in groups:
        if group.heading:
            entries.append(_Text([group.heading], {"size": 13, "weight": "bold"}))
        entries += group.rows
        if group.caption:
            entries.append(_Text([group.caption], {"size": 11, "style": "italic", "gid": _CAPTION}))
    heights = [entry.height for entry in entries]
    labels = LABELS * sum(isinstance(entry, PanelRow) for entry in entries)
    with rc_context(FONTS):  # type: ignore[arg-type]  # its keys are a Literal of all names
        figure = Figure(figsize=(WIDTH, sum(heights) + labels), layout="constrained", facecolor="white")
        grid = figure.add_gridspec(len(entries), 2, height_ratios=heights)
        for number, entry in enumerate(entries):
            if isinstance(entry, PanelRow):
                _draw(figure, grid, number, entry)
            else:
                axes = figure.add_subplot(grid[number, :])
                axes.set_axis_off()
                # a long line must not move the axes of other rows
                axes.text(0, 0.5, "\n".join(entry.lines), va="center", **entry.style).set_in_layout(False)
        _fix_layout(figure)
    return figure


def _fix_layout(figure: "Figure") -> None:
    """Lays the axes out once and rounds their positions.

    The solver of the constrained layout differs in the last digits from run to run, which the ids in SVG files show.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 6) for edge in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def _draw(figure: "Figure", grid: "GridSpec", number: int, row: PanelRow) -> None:
    """Draws the panels of a row: in the two columns, or closer together where they share a colour bar."""
    if row.bar:
        axes_of = [*grid[number, :].subgridspec(1, len(row.panels)).subplots(sharey=True, squeeze=False)[0]]
    elif len(row.panels) == 1:
        axes_of = [figure.add_subplot(grid[number, :])]
    else:
        axes_of = [figure.add_subplot(grid[number, column]) for column in range(len(row.panels))]
    for panel, axes in zip(row.panels, axes_of, strict=True):
        panel.draw(axes)
    if row.bar:
        for axes in axes_of[1:]:
            axes.set_ylabel("")
        colour_bar(axes_of[-1], axes_of[-1].images[0], row.bar)


def captions(figure: "Figure") -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_gid() == _CAPTION]


def panel_axes(figure: "Figure") -> "list[Axes]":
    """The figure's axes but for lines of text."""
    return [axes for axes in figure.axes if axes.get_title()]


def render(figure: "Figure", suffix: str, title: str, source: str) -> bytes:
    """``figure`` as a file of one of `SUFFIXES`; the same figure gives the same bytes."""
    metadata = {"Title": title, "Description": " ".join(captions(figure))}
    if suffix == ".png":
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata=metadata)
        return buffer.getvalue()
    svg = _svg(figure, metadata)
    if suffix == ".svg":
        return svg
    drawing = svg.decode()
    return pages.render(
        "plot.html", title=title, svg=drawing[drawing.index("<svg") :], captions=captions(figure), source=source
    )


def _svg(figure: "Figure", metadata: dict[str, str]) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    # ids from a fixed salt, no date: a file that can be compared
    with rc_context({"svg.hashsalt": "posexport"}):
        figure.savefig(buffer, format="svg", dpi=DOTS_PER_INCH, metadata={"Date": None, **metadata})
    return buffer.getvalue()

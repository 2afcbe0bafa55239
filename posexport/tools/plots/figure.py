"""Groups of panels as one figure, and the figure as the bytes of a file.

Every place is computed here in inches, so that axes of one picture line up: the left edges of all rows are the left
edge of the figure's first column, the right edge of a wide panel is that of the last column. Right of each column stays
free for a colour bar or a legend.
"""

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posexport.system.extras import require
from posexport.tools import pages
from posexport.tools.plots.plot import SIDE, Group, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
#: inches: free at a column's left for its ticks and label, at its right for a colour bar or a legend
LEFT, RIGHT = 0.85, 1.50
WIDTH = 2 * (LEFT + SIDE + RIGHT)
WIDE = WIDTH - LEFT - RIGHT
#: inches: above and below a row's axes, for its titles, ticks and labels; for a caption and a heading
ABOVE, BELOW, CAPTION, HEADING = 0.42, 0.62, 0.42, 0.42
TITLE_LINE, SUMMARY_LINE, EDGE = 0.30, 0.23, 0.20
#: of tight rows: inches between the panels, and the largest width of one
GAP, LARGEST = 0.28, 2.4
DOTS_PER_INCH = 110
FONTS: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
}


def compose(groups: Sequence[Group], title: str, summary: str) -> "Figure":
    """The figure: a title, a sentence, and every group: its heading, its rows, its caption.

    Raises:
        PosexportError: matplotlib is not installed.
    """
    require("posexport plot", "matplotlib")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    title_lines, summary_lines = textwrap.wrap(title, 95), textwrap.wrap(summary, 140)
    head = EDGE + TITLE_LINE * len(title_lines) + SUMMARY_LINE * len(summary_lines)
    height = head + sum(_height(group) for group in groups) + EDGE / 2
    with rc_context(FONTS):  # type: ignore[arg-type]  # its keys are a Literal of all names
        figure = Figure(figsize=(WIDTH, height), facecolor="white")
        left = LEFT / WIDTH
        figure.text(left, 1 - EDGE / height, "\n".join(title_lines), size=15, weight="bold", va="top", linespacing=1.25)
        below = EDGE + TITLE_LINE * len(title_lines)
        figure.text(left, 1 - below / height, "\n".join(summary_lines), size=11, color="#444444", va="top")
        top = height - head
        for group in groups:
            if group.heading:
                figure.text(left, (top - 0.12) / height, group.heading, size=13, weight="bold", va="top")
                top -= HEADING
            for row in group.rows:
                top -= ABOVE
                size = axes_height(row)
                for panel, (x, width) in zip(row.panels, columns(row), strict=True):
                    axes = figure.add_axes((x / WIDTH, (top - size) / height, width / WIDTH, size / height))
                    panel.draw(axes)
                    if row.tight and x > LEFT:
                        axes.set_ylabel("")
                        axes.tick_params(labelleft=False)
                top -= size + BELOW
            if group.caption:
                figure.text(
                    left, (top - 0.02) / height, group.caption, size=11, style="italic", va="top", gid="caption"
                )
                top -= CAPTION
    return figure


def columns(row: Row) -> list[tuple[float, float]]:
    """Left edge and width of a row's axes, in inches."""
    count = len(row.panels)
    if row.tight:
        width = min(LARGEST, (WIDE - GAP * (count - 1)) / count)
        return [(LEFT + n * (width + GAP), width) for n in range(count)]
    if count == 1:
        return [(LEFT, WIDE)]
    return [(LEFT + n * WIDTH / count, WIDTH / count - LEFT - RIGHT) for n in range(count)]


def axes_height(row: Row) -> float:
    """Inches; tight panels are square."""
    return columns(row)[0][1] if row.tight else row.height


def _height(group: Group) -> float:
    rows = sum(ABOVE + axes_height(row) + BELOW for row in group.rows)
    return rows + (HEADING if group.heading else 0) + (CAPTION if group.caption else 0)


def captions(figure: "Figure") -> list[str]:
    return [text.get_text() for text in figure.texts if text.get_gid() == "caption"]


def panel_axes(figure: "Figure") -> "list[Axes]":
    """The figure's axes but for colour bars."""
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

"""Rows of panels as one figure, and the figure as the bytes of a file."""

import html
import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.plots.base import Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
WIDTH, ROW_HEIGHT, HEAD_HEIGHT = 13.0, 4.6, 1.1
DOTS_PER_INCH = 110
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 75em; margin: 1em auto; }}
svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
{svg}
<p>{source}</p>
</body>
</html>
"""


def compose(rows: Sequence[Sequence[Panel]], title: str, summary: str) -> "Figure":
    """The figure: a title, a sentence, and every row with its panels side by side.

    Raises:
        PosexportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise PosexportError(
            "posexport plot needs matplotlib, which is not installed; install it with pip install 'posexport[plots]'"
        ) from err
    figure = Figure(figsize=(WIDTH, HEAD_HEIGHT + ROW_HEIGHT * len(rows)), layout="constrained")
    figure.suptitle("\n".join([*textwrap.wrap(title, 110), *textwrap.wrap(summary, 130)]), fontsize=12)
    grid = figure.add_gridspec(len(rows), 1)
    for number, row in enumerate(rows):
        places = grid[number].subgridspec(1, len(row))
        for column, panel in enumerate(row):
            panel.draw(figure.add_subplot(places[column]))
    return figure


def render(figure: "Figure", suffix: str, title: str, source: str) -> bytes:
    """``figure`` as a file of one of `SUFFIXES`; the same figure gives the same bytes."""
    if suffix == ".png":
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        return buffer.getvalue()
    svg = _svg(figure)
    if suffix == ".svg":
        return svg
    inner = svg.decode()
    page = _PAGE.format(title=html.escape(title), svg=inner[inner.index("<svg") :], source=html.escape(source))
    return page.encode()


def _svg(figure: "Figure") -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    # ids from a fixed salt, no date: a file that can be compared
    with rc_context({"svg.hashsalt": "posexport"}):
        figure.savefig(buffer, format="svg", dpi=DOTS_PER_INCH, metadata={"Date": None})
    return buffer.getvalue()

"""The pictures of a comparison: accuracy against length for every encoding, accuracy against latency for all.

Every picture is small enough to be read on a phone without being made smaller. Sizes are pixels of the page.
"""

import io
import math
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posexport.compare.comparison_table import shown
from posexport.compare.records import LIMIT, Document, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

#: told apart by readers who do not tell red from green (after Okabe and Ito 2008), dark enough to be read on white
COLOURS = ("#0072b2", "#d55e00", "#00825f", "#b0408f", "#7a5c00", "#2a8fbd", "#000000")
GREY, LIGHT = "#767676", "#e5e5e5"
#: where the encoding acts, in the order of the key; the first that fits gives the colour
WHERE = (
    ("embed", "input"),
    ("rotate", "rotation of queries and keys"),
    ("values", "scores and values"),
    ("scores", "scores"),
)
NOWHERE = "nowhere"
#: the smallest span of an axis: points that differ by less are alike
LEAST_SHARE, LEAST_RATIO = 0.2, 0.2
#: the width of a letter to its size
_LETTER = 0.56
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "posexport",
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "lines.linewidth": 1.6,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
#: begins the ids of what has a tooltip
_TOOLTIP = "tooltip: "


def task_colours(document: Document) -> list[tuple[str, str]]:
    return list(zip([task.name for task in document.tasks], COLOURS, strict=False))


def hook_colours(document: Document) -> list[tuple[str, str]]:
    """Where encodings of this comparison act, with the colours."""
    used = {_hook(row) for row in document.rows if row.status == "measured"}
    names = [*(name for _, name in WHERE), NOWHERE]
    return [(name, COLOURS[index]) for index, name in enumerate(names) if index in used]


def against_length(document: Document) -> list[str]:
    """One small picture an encoding: a line a task, its chance as a dashed line, `limit` where its table ends."""
    return [_panel(document, row) for row in document.rows if row.status == "measured"]


def _panel(document: Document, row: Row) -> str:
    figure, axes = _frame(190, 144, (40, 22, 142, 100), size=11)
    axes.set_title(row.encoding, fontsize=13, pad=4)
    axes.set_xticks(range(len(document.lengths)), [str(length) for length in document.lengths])
    axes.set_yticks([0.0, 0.5, 1.0], [shown(0.0), shown(0.5), shown(1.0)])
    axes.grid(axis="y")
    axes.set(xlim=(-0.2, len(document.lengths) - 0.8), ylim=(0.0, 1.03))
    for task, colour in zip(document.tasks, COLOURS, strict=False):
        axes.axhline(task.chance, color=colour, linewidth=1, linestyle="--")
        cells = [row.accuracy[task.name][str(length)] for length in document.lengths]
        points = [(x, cell) for x, cell in enumerate(cells) if not isinstance(cell, str)]
        axes.plot([x for x, _ in points], [cell for _, cell in points], color=colour)
        for x, cell in points:
            _dot(axes, x, cell, colour, f"{row.encoding}, {task.name}, {document.lengths[x]}: {shown(cell)}")
    refused = [x for x, length in enumerate(document.lengths) if _ends(row, length)]
    if refused:
        axes.text((refused[0] + refused[-1]) / 2, 0.7, LIMIT, size=12, ha="center", color=GREY)
    return _svg(figure, f"accuracy of {row.encoding} against length")


def against_latency(document: Document, length: int) -> str:
    """A point an encoding: the mean of its accuracies at ``length`` against its latency relative to ``nope``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    points = [
        (row, row.latency_to_nope, mean)
        for row in document.rows
        if row.latency_to_nope is not None and (mean := row.mean(length)) is not None
    ]
    refused = [row.encoding for row in document.rows if _ends(row, length)]
    note = textwrap.wrap(f"{LIMIT}: {', '.join(refused)}", 62) if refused else []
    width, height = 500, 400 + 16 * len(note)
    figure, axes = _frame(width, height, (52, 34, width - 66, 310), size=13)
    axes.set_title(f"length {length}: mean accuracy against latency", loc="left", fontsize=15)
    axes.set_xlabel("latency, nope = 1", fontsize=14)
    low, high = span([mean for _, _, mean in points], LEAST_SHARE)
    axes.set(xlim=span([latency for _, latency, _ in points], LEAST_RATIO), ylim=(max(0.0, low), min(1.03, high)))
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: shown(share)))
    axes.grid(axis="y")
    for index, line in enumerate(note):
        figure.text(52 / width, 1 - (402 + 16 * index) / height, line, size=13, color=GREY)
    _label(axes, points)
    return _svg(figure, f"accuracy at length {length} against latency")


def span(values: Sequence[float], least: float) -> tuple[float, float]:
    """Ends of an axis with all values well inside, at least ``least`` apart."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    middle, half = (low + high) / 2, max(high - low, least) / 2
    return middle - 1.2 * half, middle + 1.2 * half


def _frame(width: int, height: int, box: tuple[int, int, int, int], *, size: int) -> "tuple[Figure, Axes]":
    """A picture, and its axes in ``box``: left, top, width and height."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    left, top, wide, high = box
    with rc_context(_STYLE):  # type: ignore[arg-type]  # its keys are a Literal of all names
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        bounds = (left / width, 1 - (top + high) / height, wide / width, high / height)
        axes = figure.add_axes(bounds)
        axes.tick_params(labelsize=size)
    return figure, axes


def _svg(figure: "Figure", label: str) -> str:
    """The picture as an element of a page, as wide as the page allows, with its tooltips."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_fontfamily("DejaVu Sans")  # one that matplotlib has; the page's style says which is shown
    file = io.BytesIO()
    with rc_context(_STYLE):  # type: ignore[arg-type]
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": label,
        "style": f"max-width:{figure.bbox.width:.0f}px",
    }
    for element in root.iter():  # inside of a page SVG has no namespaces
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.attrib.get("id", "").startswith(_TOOLTIP):
            ET.SubElement(element, "title").text = element.attrib.pop("id").removeprefix(_TOOLTIP)
    root.remove(root.find("metadata"))  # type: ignore[arg-type]  # matplotlib writes one
    return ET.tostring(root, encoding="unicode")


def _dot(axes: "Axes", x: float, y: float, colour: str, tip: str, *, size: float = 6) -> None:
    axes.plot([x], [y], "o", color=colour, markersize=size, markeredgewidth=0, gid=f"{_TOOLTIP}{tip}", clip_on=False)


def _label(axes: "Axes", points: list[tuple[Row, float, float]]) -> None:
    """Dots with their names, each name at the nearest place where it covers no other name and no dot."""
    from matplotlib.transforms import Bbox

    size = 13 if len(points) <= 12 else 11
    pixels = [axes.transData.transform((latency, mean)) for _, latency, mean in points]
    covered = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in pixels]
    order = sorted(range(len(points)), key=lambda index: (-points[index][2], points[index][1]))
    for index in order:
        (row, latency, mean), (x, y) = points[index], pixels[index]
        colour = COLOURS[_hook(row)]
        box = _free(x, y, _LETTER * size * len(row.encoding), size + 1.0, covered, axes.bbox)
        covered.append(box)
        middle = (box.y0 + box.y1) / 2
        near = box.x0 if box.x0 > x else box.x1
        if math.hypot(near - x, middle - y) > 14:
            ends = axes.transData.inverted().transform([(x, y), (near, middle)])
            axes.plot(ends[:, 0], ends[:, 1], color=GREY, linewidth=0.6)
        _dot(axes, latency, mean, colour, f"{row.encoding}: {shown(mean)}, latency {latency:.2f}", size=8)
        axes.text(box.x0, box.y0 + 3, row.encoding, size=size, color=colour, transform=None)


def _free(x: float, y: float, width: float, height: float, covered: "list[Bbox]", frame: "Bbox") -> "Bbox":
    """The nearest place for a name of this size beside (x, y), or the first one if all are covered."""
    from matplotlib.transforms import Bbox

    for radius in range(0, 240, 6):
        for degrees in range(0, 360, 30):
            right, up = radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))
            start = x + 7 + right if right >= 0 else x - 7 - width + right
            box = Bbox.from_bounds(start, y + up - height / 2, width, height)
            inside = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
            if inside and not box.count_overlaps(covered):
                return box
    return Bbox.from_bounds(x + 7, y - height / 2, width, height)


def _ends(row: Row, length: int) -> bool:
    return any(by_length.get(str(length)) == LIMIT for by_length in row.accuracy.values())


def _hook(row: Row) -> int:
    """The index in `WHERE` of the first hook that the encoding acts through; one more: it acts nowhere."""
    return next((index for index, (hook, _) in enumerate(WHERE) if hook in row.acts_on), len(WHERE))

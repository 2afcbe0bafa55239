"""One HTML file with all of a comparison: the table, the pictures, the tasks. It needs no other file.

Every picture is small enough to be read on a phone without being made smaller. Sizes are pixels of the page.
"""

import base64
import io
import textwrap
from typing import TYPE_CHECKING, Any

from posexport.inspect import pages
from posexport.study.compare import tasks
from posexport.study.compare.records import LIMIT, Cell, Document, TableRow, ratio, shown, to_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: safe for red-green colour blindness (after Okabe and Ito 2008), dark enough for a white page
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
Picture = dict[str, str]


def task_colours(document: Document) -> list[tuple[str, str]]:
    return list(zip([task.name for task in document.tasks], COLOURS, strict=False))


def hook_colours(document: Document) -> list[tuple[str, str]]:
    """Where encodings of this comparison act, with the colours."""
    used = {_hook(result) for result in document.rows if result.status == "measured"}
    names = [*(name for _, name in WHERE), NOWHERE]
    return [(name, COLOURS[index]) for index, name in enumerate(names) if index in used]


def against_length(document: Document) -> list[Picture]:
    """One small picture an encoding: a line a task, its chance as a dashed line, `limit` where its table ends."""
    return [_panel(document, result) for result in document.rows if result.status == "measured"]


def _panel(document: Document, result: TableRow) -> Picture:
    figure, axes = _frame(190, 144, size=11)
    axes.set_title(result.encoding, fontsize=13)
    axes.set_xticks(range(len(document.lengths)), [str(length) for length in document.lengths])
    axes.set_yticks([0.0, 0.5, 1.0], [shown(0.0), shown(0.5), shown(1.0)])
    axes.set(xlim=(-0.2, len(document.lengths) - 0.8), ylim=(0.0, 1.03))
    for task, colour in zip(document.tasks, COLOURS, strict=False):
        axes.axhline(task.chance, color=colour, linewidth=1, linestyle="--")
        cells = [result.accuracy[task.name][str(length)] for length in document.lengths]
        points = [(x, cell) for x, cell in enumerate(cells) if not isinstance(cell, str)]
        axes.plot([x for x, _ in points], [cell for _, cell in points], "o-", color=colour, markersize=5)
    refused = [x for x, length in enumerate(document.lengths) if _ends(result, length)]
    if refused:
        axes.text((refused[0] + refused[-1]) / 2, 0.7, LIMIT, size=12, ha="center", color=GREY)
    return _svg(figure, f"accuracy of {result.encoding} against length")


def against_latency(document: Document, length: int) -> Picture:
    """A point an encoding: the mean of its accuracies at ``length`` against its latency relative to ``nope``.

    Names are in the margin, in the order of the points, from the most accurate down.
    """
    points = [
        (mean, result.latency_to_nope, result)
        for result in document.rows
        if result.latency_to_nope is not None and (mean := result.mean(length)) is not None
    ]
    points.sort(key=lambda point: point[:2])
    # encodings with a shorter limit have no point and are listed below
    refused = [result.encoding for result in document.rows if _ends(result, length)]
    note = textwrap.wrap(f"{LIMIT}: {', '.join(refused)}", 62) if refused else []
    figure, axes = _frame(500, max(400, 16 * len(points) + 90) + 16 * len(note), size=13)
    axes.set_title(f"length {length}: mean accuracy against latency", loc="left", fontsize=15)
    axes.set_xlabel("\n".join(["latency, nope = 1", *note]), fontsize=13)
    axes.yaxis.set_major_formatter(lambda share, _: shown(share))
    axes.margins(0.1)
    # names are in the margin, each connected to its point by a line
    for index, (mean, latency, result) in enumerate(points):
        colour = COLOURS[_hook(result)]
        axes.plot([latency], [mean], "o", color=colour, markersize=8)
        axes.annotate(
            result.encoding,
            (latency, mean),
            xytext=(1.03, (index + 0.5) / len(points)),
            textcoords="axes fraction",
            va="center",
            size=13,
            color=colour,
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 2, "color": GREY, "linewidth": 0.6},
        )
    return _svg(figure, f"accuracy at length {length} against latency")


def _frame(width: int, height: int, *, size: int) -> "tuple[Figure, Axes]":
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):  # type: ignore[arg-type]  # its keys are a Literal of all names
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        axes.tick_params(labelsize=size)
        axes.grid(axis="y")
    return figure, axes


def _svg(figure: "Figure", label: str) -> Picture:
    """The picture as the attributes of an HTML image, which the page makes no wider than it is."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(_STYLE):  # type: ignore[arg-type]
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    return {"src": f"data:image/svg+xml;base64,{data}", "alt": label, "width": f"{figure.bbox.width:.0f}"}


def _ends(result: TableRow, length: int) -> bool:
    return any(by_length.get(str(length)) == LIMIT for by_length in result.accuracy.values())


def _hook(result: TableRow) -> int:
    """The index in `WHERE` of the first hook that the encoding acts through; one more: it acts nowhere."""
    return next((index for index, (hook, _) in enumerate(WHERE) if hook in result.acts_on), len(WHERE))


def page(document: Document) -> bytes:
    accuracies = [f"{task.name} {length}" for task in document.tasks for length in document.lengths]
    measured = [result for result in document.rows if result.status == "measured"]
    return pages.render(
        "compare.html",
        setup=document.setup,
        tasks=document.tasks,
        learned=document.learned,
        measured=measured,
        others=[result for result in document.rows if result.status != "measured"],
        heads=["encoding", *accuracies, "parameters", "own", "kB", "latency ms", "to nope", "memory MB", "to nope"],
        lines=[_line(document, result) for result in measured],
        csv=f"data:text/csv;base64,{base64.b64encode(to_csv(document)).decode()}",
        noise=None if document.noise is None else shown(document.noise),
        by_length=against_length(document),
        by_latency=[against_latency(document, length) for length in document.lengths],
        task_key=task_colours(document),
        place_key=hook_colours(document),
        pairs=tasks.PAIRS,
        letters=tasks.LETTERS,
        shown=shown,
    )


Line = dict[str, object]


def _line(document: Document, result: TableRow) -> list[Line]:
    """The cells of a row: their texts and sort keys."""
    cells: list[Line] = [{"words": result.encoding, "key": result.encoding, "name": "", "colour": ""}]
    for task in document.tasks:
        cells += [_accuracy(result.accuracy[task.name][str(length)], task.chance) for length in document.lengths]
    megabytes = None if result.memory_bytes is None else result.memory_bytes / 1e6
    for number, shape in (
        (result.parameters, ",.0f"),
        (result.own_parameters, ",.0f"),
        ((result.file_bytes or 0) / 1e3, ",.0f"),
        (result.latency_ms, ".1f"),
    ):
        cells.append(_number(number, "" if number is None else format(number, shape)))
    cells.append(_number(result.latency_to_nope, ratio(result.latency_to_nope)))
    cells.append(_number(megabytes, "-" if megabytes is None else f"{megabytes:.1f}"))
    cells.append(_number(result.memory_to_nope, ratio(result.memory_to_nope)))
    return cells


def _accuracy(cell: Cell, chance: float) -> Line:
    """White where it is no better than guessing, green where it is always right."""
    if isinstance(cell, str):
        return {"words": cell, "key": -1, "name": "limit", "colour": ""}
    better = max(0.0, (cell - chance) / (1 - chance))
    return {"words": shown(cell), "key": cell, "name": "", "colour": f"rgb(var(--fit) / {0.75 * better:.2f})"}


def _number(number: float | None, words: str) -> Line:
    return {"words": words, "key": -1 if number is None else number, "name": "", "colour": ""}

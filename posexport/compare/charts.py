"""The pictures of a comparison: accuracy against length for every encoding, accuracy against latency for all.

Every picture is small enough to be read on a phone without being made smaller.
"""

import math
import textwrap
from collections.abc import Sequence

from posexport.compare.comparison_table import shown
from posexport.compare.records import LIMIT, Document, Row
from posexport.compare.svg import COLOURS, GREY, Frame, dot, drawing, line, text

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


def task_colours(document: Document) -> list[tuple[str, str]]:
    """Names of the tasks with their colours."""
    return list(zip([task.name for task in document.tasks], COLOURS, strict=False))


def places(document: Document) -> list[tuple[str, str]]:
    """Where encodings of this comparison act, with the colours."""
    shown_rows = [row for row in document.rows if row.status == "measured"]
    used = {_where(row) for row in shown_rows}
    names = [*(name for _, name in WHERE), NOWHERE]
    return [(name, COLOURS[number]) for number, name in enumerate(names) if number in used]


def against_length(document: Document) -> list[str]:
    """One small picture an encoding: a line a task, its chance as a dashed line, `limit` where its table ends."""
    return [_panel(document, row) for row in document.rows if row.status == "measured"]


def _panel(document: Document, row: Row) -> str:
    last = len(document.lengths) - 1
    frame = Frame(40, 22, 142, 100, -0.2, last + 0.2, 0.0, 1.03)
    shapes = [frame.border(), text(frame.left + frame.width / 2, 15, row.encoding, size=13, anchor="middle")]
    for share in (0.0, 0.5, 1.0):
        shapes.append(frame.across(share))
        shapes.append(text(frame.left - 4, frame.at(0, share)[1] + 4, shown(share), size=11, anchor="end"))
    for place, length in enumerate(document.lengths):
        x, y = frame.at(place, 0)
        shapes.append(text(x, y + 14, str(length), size=11, anchor="middle"))
    for task, colour in zip(document.tasks, COLOURS, strict=False):
        shapes.append(frame.across(task.chance, colour, dashed=True))
        cells = [row.accuracy[task.name][str(length)] for length in document.lengths]
        numbers = [(place, cell) for place, cell in enumerate(cells) if not isinstance(cell, str)]
        points = [frame.at(place, cell) for place, cell in numbers]
        shapes.append(line(points, colour))
        for (x, y), (place, cell) in zip(points, numbers, strict=True):
            shapes.append(dot(x, y, colour, f"{row.encoding}, {task.name}, {document.lengths[place]}: {shown(cell)}"))
    ended = [place for place, length in enumerate(document.lengths) if _ends(row, length)]
    if ended:
        x, _ = frame.at((ended[0] + ended[-1]) / 2, 0)
        shapes.append(text(x, frame.at(0, 0.7)[1], LIMIT, size=12, anchor="middle", colour=GREY))
    return drawing(190, 144, f"accuracy of {row.encoding} against length", shapes)


def against_latency(document: Document, length: int) -> str:
    """A point an encoding: the mean of its accuracies at ``length`` against its latency relative to ``nope``."""
    points = [
        (row, row.latency_to_nope, mean)
        for row in document.rows
        if row.latency_to_nope is not None and (mean := row.mean(length)) is not None
    ]
    ended = [row.encoding for row in document.rows if _ends(row, length)]
    note = textwrap.wrap(f"{LIMIT}: {', '.join(ended)}", 62) if ended else []
    width, height = 500.0, 400.0 + 16 * len(note)
    left, right = span([latency for _, latency, _ in points], LEAST_RATIO)
    low, high = span([mean for _, _, mean in points], LEAST_SHARE)
    low, high = max(0.0, low), min(1.03, high)
    frame = Frame(52, 34, width - 66, 310, left, right, low, high)
    shapes = [frame.border(), text(52, 20, f"length {length}: mean accuracy against latency", size=15)]
    for share in ticks(low, min(high, 1.0)):
        shapes += [frame.across(share), text(46, frame.at(left, share)[1] + 4, shown(share), size=13, anchor="end")]
    for latency in ticks(left, right):
        x, y = frame.at(latency, low)
        shapes.append(text(x, y + 18, f"{latency:g}", size=13, anchor="middle"))
    middle = frame.left + frame.width / 2
    shapes.append(text(middle, frame.top + frame.height + 38, "latency, nope = 1", size=14, anchor="middle"))
    for number, words in enumerate(note):
        shapes.append(text(52, frame.top + frame.height + 58 + 16 * number, words, size=13, colour=GREY))
    return drawing(width, height, f"accuracy at length {length} against latency", shapes + _labelled(points, frame))


def span(values: Sequence[float], least: float) -> tuple[float, float]:
    """Ends of an axis with all values well inside, at least ``least`` apart."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    middle, half = (low + high) / 2, max(high - low, least) / 2
    return middle - 1.2 * half, middle + 1.2 * half


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two, at most eight."""
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if (high - low) / s <= 7)
    return [round(n * step, 6) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _labelled(points: list[tuple[Row, float, float]], frame: Frame) -> list[str]:
    """Dots with their names, each name at the nearest place where it covers no other name and no dot."""
    size = 13 if len(points) <= 12 else 11
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (frame.at(latency, mean) for _, latency, mean in points)]
    shapes = []
    for row, latency, mean in sorted(points, key=lambda point: (-point[2], point[1])):
        x, y = frame.at(latency, mean)
        colour = COLOURS[_where(row)]
        box = _free(x, y, _LETTER * size * len(row.encoding), size / 2 + 0.5, taken, frame)
        taken.append(box)
        middle = (box[1] + box[3]) / 2
        near = box[0] if box[0] > x else box[2]
        if math.hypot(near - x, middle - y) > 14:
            shapes.append(line([(x, y), (near, middle)], GREY, width=0.6))
        shapes.append(dot(x, y, colour, f"{row.encoding}: {shown(mean)}, latency {latency:.2f}", radius=4))
        shapes.append(text(box[0], box[3] - 2, row.encoding, size=size, colour=colour))
    return shapes


Box = tuple[float, float, float, float]


def _free(x: float, y: float, wide: float, half: float, taken: list[Box], frame: Frame) -> Box:
    """The nearest place for a name of this size beside (x, y), or the first one if all are covered."""
    first: Box = (x + 7, y - half, x + 7 + wide, y + half)
    for radius in range(0, 240, 6):
        for turn in range(0, 360, 30):
            along, down = radius * math.cos(math.radians(turn)), radius * math.sin(math.radians(turn))
            start = x + 7 + along if along >= 0 else x - 7 - wide + along
            box = (start, y + down - half, start + wide, y + down + half)
            inside = frame.left <= box[0] and box[2] <= frame.left + frame.width
            inside = inside and frame.top <= box[1] and box[3] <= frame.top + frame.height
            if inside and not any(_overlap(box, other) for other in taken):
                return box
    return first


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ends(row: Row, length: int) -> bool:
    return any(by_length.get(str(length)) == LIMIT for by_length in row.accuracy.values())


def _where(row: Row) -> int:
    """The number in `WHERE` of the first hook that the encoding acts through; one more: it acts nowhere."""
    return next((number for number, (hook, _) in enumerate(WHERE) if hook in row.acts_on), len(WHERE))

"""The pictures of a comparison: accuracy against length for every encoding, accuracy against latency for all."""

import math

from posexport.compare.records import LIMIT, Document, Row
from posexport.compare.svg import COLOURS, GREY, Frame, dot, drawing, line, text
from posexport.compare.table import shown

#: where the encoding acts, in the order of the legend; the first that fits gives the colour
WHERE = (
    ("embed", "input"),
    ("rotate", "rotation of queries and keys"),
    ("values", "scores and values"),
    ("scores", "scores"),
)
COLUMNS = 6


def against_length(document: Document) -> str:
    """One small picture an encoding: a line a task, its chance as a dashed line, `limit` where its table ends."""
    rows = [row for row in document.rows if row.status == "measured"]
    cell_width, cell_height, head = 185.0, 150.0, 34.0
    shapes = _legend([task.name for task in document.tasks], 8.0, 16.0)
    shapes.append(text(420, 16, "dashed: guessing; limit: the table of positions ends", size=12, colour=GREY))
    for number, row in enumerate(rows):
        down, along = divmod(number, COLUMNS)
        last = len(document.lengths) - 1
        frame = Frame(
            along * cell_width + 34, head + down * cell_height + 18, cell_width - 50, 96, -0.2, last + 0.2, 0.0, 1.03
        )
        shapes += _panel(document, row, frame, first=along == 0)
    height = head + cell_height * math.ceil(len(rows) / COLUMNS)
    return drawing(COLUMNS * cell_width, height, "accuracy against length", shapes)


def _panel(document: Document, row: Row, frame: Frame, *, first: bool) -> list[str]:
    middle = frame.left + frame.width / 2
    shapes = [frame.border(), text(middle, frame.top - 8, row.encoding, size=12, anchor="middle")]
    for share in (0.0, 0.5, 1.0):
        shapes.append(frame.across(share))
        if first:
            shapes.append(text(frame.left - 4, frame.at(0, share)[1] + 4, shown(share), size=9, anchor="end"))
    for place, length in enumerate(document.lengths):
        x, y = frame.at(place, 0)
        shapes.append(text(x, y + 12, str(length), size=9, anchor="middle"))
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
        shapes.append(text(x, frame.at(0, 0.7)[1], LIMIT, anchor="middle", colour=GREY))
    return shapes


def against_latency(document: Document, length: int) -> str:
    """A point an encoding: the mean of its accuracies at ``length`` against its latency relative to ``nope``."""
    points = [
        (row, row.latency_to_nope, mean)
        for row in document.rows
        if row.latency_to_nope is not None and (mean := row.mean(length)) is not None
    ]
    ended = [row.encoding for row in document.rows if _ends(row, length)]
    width, height = 1000.0, 520.0
    right = max([1.2, *(latency for _, latency, _ in points)]) * 1.05
    left = min([0.9, *(latency for _, latency, _ in points)]) * 0.97
    frame = Frame(60, 46, width - 80, height - 106, left, right, 0.2, 1.05)
    shapes = [frame.border(), *_legend([name for _, name in WHERE] + ["nowhere"], 66.0, 34.0)]
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        shapes += [frame.across(share), text(52, frame.at(left, share)[1] + 4, shown(share), anchor="end")]
    for latency in _ticks(left, right):
        x, y = frame.at(latency, 0.2)
        shapes.append(text(x, y + 16, f"{latency:g}", anchor="middle"))
    shapes.append(text(frame.left + frame.width / 2, height - 26, "latency relative to nope", size=12, anchor="middle"))
    shapes.append(text(60, 16, f"mean accuracy at length {length}; coloured by where the encoding acts", size=12))
    if ended:
        shapes.append(text(60, height - 6, f"{LIMIT}: {', '.join(ended)}", size=10, colour=GREY))
    return drawing(width, height, f"accuracy at length {length} against latency", shapes + _labelled(points, frame))


def _labelled(points: list[tuple[Row, float, float]], frame: Frame) -> list[str]:
    """Dots with their names, each name at the nearest place where it covers no other name and no dot."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in (frame.at(latency, mean) for _, latency, mean in points)]
    shapes = []
    for row, latency, mean in sorted(points, key=lambda point: (-point[2], point[1])):
        x, y = frame.at(latency, mean)
        colour = _colour(row)
        wide = 5.6 * len(row.encoding)
        box = _free(x, y, wide, taken, frame)
        taken.append(box)
        middle = (box[1] + box[3]) / 2
        near = box[0] if box[0] > x else box[2]
        if math.hypot(near - x, middle - y) > 14:
            shapes.append(line([(x, y), (near, middle)], GREY, width=0.6))
        shapes.append(dot(x, y, colour, f"{row.encoding}: {shown(mean)}, latency {latency:.2f}", radius=4))
        shapes.append(text(box[0], box[3] - 2, row.encoding, size=10, colour=colour))
    return shapes


Box = tuple[float, float, float, float]


def _free(x: float, y: float, wide: float, taken: list[Box], frame: Frame) -> Box:
    """The nearest place for a name of this width beside (x, y), or the first one if all are covered."""
    first: Box = (x + 7, y - 6, x + 7 + wide, y + 6)
    for radius in range(0, 240, 6):
        for turn in range(0, 360, 30):
            along, down = radius * math.cos(math.radians(turn)), radius * math.sin(math.radians(turn))
            start = x + 7 + along if along >= 0 else x - 7 - wide + along
            box = (start, y + down - 6, start + wide, y + down + 6)
            inside = frame.left <= box[0] and box[2] <= frame.left + frame.width
            inside = inside and frame.top <= box[1] and box[3] <= frame.top + frame.height
            if inside and not any(_overlap(box, other) for other in taken):
                return box
    return first


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ends(row: Row, length: int) -> bool:
    return any(by_length.get(str(length)) == LIMIT for by_length in row.accuracy.values())


def _colour(row: Row) -> str:
    found = next((number for number, (hook, _) in enumerate(WHERE) if hook in row.acts_on), len(WHERE))
    return COLOURS[found]


def _legend(names: list[str], x: float, y: float) -> list[str]:
    shapes = []
    for name, colour in zip(names, COLOURS, strict=False):
        shapes += [dot(x, y - 4, colour, name, radius=5), text(x + 9, y, name, size=12)]
        x += 32 + 5.8 * len(name)
    return shapes


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two, about eight."""
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if (high - low) / s <= 9)
    return [round(n * step, 6) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]

"""One HTML file with all of a comparison: the table, the pictures, what was asked. It needs nothing beside itself."""

import base64

from posexport.tools import pages
from posexport.tools.compare import tasks
from posexport.tools.compare.charts import against_latency, against_length, hook_colours, task_colours
from posexport.tools.compare.comparison_table import ratio, shown, to_csv
from posexport.tools.compare.records import Cell, Document, Row


def page(document: Document) -> bytes:
    accuracies = [f"{task.name} {length}" for task in document.tasks for length in document.lengths]
    measured = [row for row in document.rows if row.status == "measured"]
    return pages.render(
        "compare.html",
        setup=document.setup,
        tasks=document.tasks,
        learned=document.learned,
        measured=measured,
        others=[row for row in document.rows if row.status != "measured"],
        heads=["encoding", *accuracies, "parameters", "own", "kB", "latency ms", "to nope", "memory MB", "to nope"],
        lines=[_line(document, row) for row in measured],
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


def _line(document: Document, row: Row) -> list[Line]:
    """The cells of a row: what is written, what it is sorted by."""
    cells: list[Line] = [{"words": row.encoding, "key": row.encoding, "name": "", "colour": ""}]
    for task in document.tasks:
        cells += [_accuracy(row.accuracy[task.name][str(length)], task.chance) for length in document.lengths]
    megabytes = None if row.memory_bytes is None else row.memory_bytes / 1e6
    for number, shape in (
        (row.parameters, ",.0f"),
        (row.own_parameters, ",.0f"),
        ((row.file_bytes or 0) / 1e3, ",.0f"),
        (row.latency_ms, ".1f"),
    ):
        cells.append(_number(number, "" if number is None else format(number, shape)))
    cells.append(_number(row.latency_to_nope, ratio(row.latency_to_nope)))
    cells.append(_number(megabytes, "-" if megabytes is None else f"{megabytes:.1f}"))
    cells.append(_number(row.memory_to_nope, ratio(row.memory_to_nope)))
    return cells


def _accuracy(cell: Cell, chance: float) -> Line:
    """White where it is no better than guessing, green where it is always right."""
    if isinstance(cell, str):
        return {"words": cell, "key": -1, "name": "limit", "colour": ""}
    better = max(0.0, (cell - chance) / (1 - chance))
    return {"words": shown(cell), "key": cell, "name": "", "colour": f"rgba(0, 158, 115, {0.75 * better:.2f})"}


def _number(number: float | None, words: str) -> Line:
    return {"words": words, "key": -1 if number is None else number, "name": "", "colour": ""}

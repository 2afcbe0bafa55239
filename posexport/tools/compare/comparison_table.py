"""The rows of a comparison, as CSV and as text for a terminal. Imports no torch."""

import csv
import io
from collections.abc import Sequence

from posexport.tools.compare.records import Cell, Document, Result, Row

_NO_NUMBER = "-"


def measured(result: Result, baseline: Result, acts_on: Sequence[str]) -> Row:
    """The row of a finished encoding; ``baseline`` is the result of ``nope``, of which ratios are taken."""
    cost, of_baseline = result.cost, baseline.cost
    growth = None if cost is None else cost.growth
    least = None if of_baseline is None else of_baseline.growth
    return Row(
        encoding=result.encoding,
        status="measured",
        acts_on=list(acts_on),
        limit=result.limit,
        accuracy=result.accuracy,
        parameters=result.parameters,
        own_parameters=result.own_parameters,
        file_bytes=result.file_bytes,
        latency_ms=None if cost is None else cost.ms,
        # nope is 1 by definition; what a second session of it took beside the first is `noise`
        latency_to_nope=None if cost is None else 1.0 if result.encoding == baseline.encoding else cost.to_nope,
        memory_bytes=growth,
        memory_to_nope=growth / least if growth is not None and least else None,
        loss=result.loss,
        seconds=result.seconds,
    )


def measured_at(result: Result) -> list[Row]:
    """The rows of a finished encoding in further precisions."""
    timed = {} if result.cost is None else result.cost.precisions
    return [
        Row(
            encoding=result.encoding,
            status="measured",
            limit=result.limit,
            accuracy=found.accuracy,
            file_bytes=found.file_bytes,
            precision=precision,
            cosine=found.cosine,
            latency_to_float32=timed.get(precision),
        )
        for precision, found in result.precisions.items()
    ]


def noise(baseline: Result) -> float | None:
    """By what share two sessions of the same model, ``nope``, differed in time: smaller differences say nothing."""
    return None if baseline.cost is None else abs(baseline.cost.to_nope - 1)


def columns(document: Document) -> list[str]:
    accuracies = [f"{task.name}_{length}" for task in document.tasks for length in document.lengths]
    figures = ["parameters", "own_parameters", "file_bytes", "latency_ms", "latency_to_nope"]
    rest = ["memory_bytes", "memory_to_nope", "loss", "seconds"]
    below = ["precision", "cosine", "latency_to_float32"] if document.precisions else []
    return ["encoding", "status", "acts_on", "limit", *accuracies, *figures, *rest, "reason", *below]


def to_csv(document: Document) -> bytes:
    """One line an encoding; what was not measured is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns(document), lineterminator="\n")
    writer.writeheader()
    for row in (*document.rows, *document.precisions):
        fields = {name: getattr(row, name) for name in columns(document) if hasattr(row, name)}
        fields["acts_on"] = " ".join(row.acts_on)
        for task, by_length in row.accuracy.items():
            fields |= {f"{task}_{length}": cell for length, cell in by_length.items()}
        writer.writerow({name: "" if value is None else value for name, value in fields.items()})
    return buffer.getvalue().encode()


def _at_precisions(document: Document, lengths: str) -> list[list[str]]:
    """What the precisions below float32 cost: accuracies, size, time and agreement."""
    lines = [["precision", *(f"{task.name} {lengths}" for task in document.tasks), "kB", "to fp32", "cosine"]]
    for row in document.precisions:
        cells = [" ".join(shown(cell).rjust(5) for cell in of_task.values()) for of_task in row.accuracy.values()]
        figures = [f"{(row.file_bytes or 0) / 1e3:.0f}", ratio(row.latency_to_float32), f"{row.cosine or 0:.4f}"]
        lines.append([f"{row.encoding} {row.precision}", *cells, *figures])
    return lines


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]


def shown(cell: Cell | None) -> str:
    return _NO_NUMBER if cell is None else cell if isinstance(cell, str) else f"{100 * cell:.0f} %"


def ratio(number: float | None) -> str:
    return _NO_NUMBER if number is None else f"{number:.2f}"


def to_text(document: Document) -> str:
    """A table for a terminal: accuracies at every length side by side, then what it costs."""
    lengths = "/".join(map(str, document.lengths))
    head = ["encoding", *(f"{task.name} {lengths}" for task in document.tasks), "parameters", "kB", "latency", "memory"]
    lines = [head]
    for row in document.rows:
        if row.status != "measured":
            continue
        cells = [" ".join(shown(cell).rjust(5) for cell in of_task.values()) for of_task in row.accuracy.values()]
        size = f"{(row.file_bytes or 0) / 1e3:.0f}"
        costs = [f"{row.parameters}", size, ratio(row.latency_to_nope), ratio(row.memory_to_nope)]
        lines.append([row.encoding, *cells, *costs])
    text = _aligned(lines)
    if document.precisions:
        text += ["", *_aligned(_at_precisions(document, lengths))]
    for status in ("failed", "not applicable"):
        text += [f"{row.encoding}: {status}: {row.reason}" for row in document.rows if row.status == status]
    chances = ", ".join(f"{task.name} {shown(task.chance)}" for task in document.tasks)
    differ = "" if document.noise is None else f" (two sessions of nope differ by {100 * document.noise:.0f} %)"
    return "\n".join([*text, f"guessing: {chances}; latency and memory are relative to nope{differ}"])

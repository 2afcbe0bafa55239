"""The set-up and the results of a comparison: on disk, as CSV and as text. Imports no torch."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posexport.base.targets.precisions import FP32, PrecisionName

LIMIT = "limit"
#: an accuracy this far above guessing is significant
LEARNED = 0.1
#: an accuracy, or `LIMIT` if the graph rejects the length
Cell = float | Literal["limit"]


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of the models, their training, and the measurement."""

    steps: int = 200
    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 256
    #: tokens of a row in training; accuracies are measured at this length, twice and four times it
    length: int = 64
    #: rows of one training step
    rows: int = 96
    #: rows that an accuracy is measured on
    asked_rows: int = 200
    #: rows of a timed call, at the trained length
    timed_rows: int = 64
    #: timed calls of each model, interleaved with calls of nope
    timed_runs: int = 15
    #: further precisions of every model
    precisions: list[PrecisionName] = []
    #: versions of the libraries
    tools: dict[str, str] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.length, 2 * self.length, 4 * self.length


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time and memory of an encoding.

    ``ms``: the median of a call; ``to_nope``: the median of its ratios to calls of ``nope`` just before and after, of
    ``nope`` itself to calls of another process. ``growth``: bytes by which calls raised a fresh process's memory; None
    where the system does not say.
    """

    ms: float
    to_nope: float
    growth: int | None
    #: by precision, the time of a call relative to the same model's in float32
    precisions: dict[str, float] = {}


class AtPrecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trained model in a precision below float32; ``cosine``: mean, of each token's logits with those in float32."""

    file_bytes: int
    accuracy: dict[str, dict[str, Cell]]
    cosine: float


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One encoding. ``accuracy``: by task, then by length, written as text as JSON wants it."""

    encoding: str
    limit: int | None
    parameters: int
    own_parameters: int
    file_bytes: int
    loss: float
    accuracy: dict[str, dict[str, Cell]]
    seconds: float
    cost: Cost | None = None
    precisions: dict[str, AtPrecision] = {}


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``status``: ``measured``, ``not applicable`` or ``failed``, the last two with a reason."""

    encoding: str
    status: Literal["measured", "not applicable", "failed"]
    reason: str = ""
    acts_on: list[str] = []
    limit: int | None = None
    accuracy: dict[str, dict[str, Cell]] = {}
    parameters: int | None = None
    own_parameters: int | None = None
    file_bytes: int | None = None
    latency_ms: float | None = None
    latency_to_nope: float | None = None
    memory_bytes: int | None = None
    memory_to_nope: float | None = None
    loss: float | None = None
    seconds: float | None = None
    precision: PrecisionName = FP32.name
    #: of a precision below float32: with the model in float32, and the time of a call relative to its
    cosine: float | None = None
    latency_to_float32: float | None = None

    def mean(self, length: int) -> float | None:
        """The mean over the tasks at a length; None where there is none."""
        cells = [of_task.get(str(length)) for of_task in self.accuracy.values()]
        numbers = [cell for cell in cells if cell is not None and not isinstance(cell, str)]
        return sum(numbers) / len(numbers) if numbers and len(numbers) == len(cells) else None


def at_precision(model: Path, precision: PrecisionName) -> Path:
    """The path of a model in another precision: ``rope.onnx`` -> ``rope.int8.onnx``."""
    return model.with_name(f"{model.stem}.{precision}{model.suffix}")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the comparison, as readers see it."""

    name: str
    question: str
    answers: int
    chance: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the whole comparison."""

    setup: Setup
    lengths: list[int]
    tasks: list[TaskInfo]
    rows: list[TableRow]
    #: the same models in further precisions
    precisions: list[TableRow] = []
    #: by what share two sessions of ``nope`` differed in latency
    noise: float | None = None

    @property
    def good(self) -> bool:
        return all(line.status != "failed" for line in self.rows)

    @property
    def verdict(self) -> str:
        """``passed``, or ``failed:`` and the encodings that could not be trained or exported."""
        failed = [line.encoding for line in self.rows if line.status == "failed"]
        return f"failed: {', '.join(failed)}" if failed else "passed"

    @property
    def learned(self) -> list[str]:
        """Encodings that answer a question clearly better than guessing at the trained length."""
        length, chance = str(self.lengths[0]), {task.name: task.chance for task in self.tasks}
        return [
            line.encoding
            for line in self.rows
            if any(
                isinstance(cell := cells.get(length), float) and cell > chance[task] + LEARNED
                for task, cells in line.accuracy.items()
            )
        ]

    def to_json(self) -> bytes:
        document = {"verdict": self.verdict, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1)


_NO_NUMBER = "-"


def measured(result: Result, baseline: Result, acts_on: Sequence[str]) -> TableRow:
    """The row of a finished encoding; ratios are relative to ``baseline``, the result of ``nope``."""
    cost, of_baseline = result.cost, baseline.cost
    growth = None if cost is None else cost.growth
    least = None if of_baseline is None else of_baseline.growth
    return TableRow(
        encoding=result.encoding,
        status="measured",
        acts_on=list(acts_on),
        limit=result.limit,
        accuracy=result.accuracy,
        parameters=result.parameters,
        own_parameters=result.own_parameters,
        file_bytes=result.file_bytes,
        latency_ms=None if cost is None else cost.ms,
        # nope is 1 by definition; the ratio of two of its sessions is `noise`
        latency_to_nope=None if cost is None else 1.0 if result.encoding == baseline.encoding else cost.to_nope,
        memory_bytes=growth,
        memory_to_nope=growth / least if growth is not None and least else None,
        loss=result.loss,
        seconds=result.seconds,
    )


def measured_at(result: Result) -> list[TableRow]:
    """The rows of a finished encoding in further precisions."""
    timed = {} if result.cost is None else result.cost.precisions
    return [
        TableRow(
            encoding=result.encoding,
            status="measured",
            limit=result.limit,
            accuracy=measured.accuracy,
            file_bytes=measured.file_bytes,
            precision=precision,
            cosine=measured.cosine,
            latency_to_float32=timed.get(precision),
        )
        for precision, measured in result.precisions.items()
    ]


def noise(baseline: Result) -> float | None:
    """The relative difference in time between two sessions of ``nope``: smaller differences are noise."""
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
    for line in (*document.rows, *document.precisions):
        fields = {name: getattr(line, name) for name in columns(document) if hasattr(line, name)}
        fields["acts_on"] = " ".join(line.acts_on)
        for task, by_length in line.accuracy.items():
            fields |= {f"{task}_{length}": cell for length, cell in by_length.items()}
        writer.writerow({name: "" if value is None else value for name, value in fields.items()})
    return buffer.getvalue().encode()


def _at_precisions(document: Document, lengths: str) -> list[list[str]]:
    """What the precisions below float32 cost: accuracies, size, time and agreement."""
    lines = [["precision", *(f"{task.name} {lengths}" for task in document.tasks), "kB", "to fp32", "cosine"]]
    for result in document.precisions:
        cells = [" ".join(shown(cell).rjust(5) for cell in of_task.values()) for of_task in result.accuracy.values()]
        figures = [
            f"{(result.file_bytes or 0) / 1e3:.0f}",
            ratio(result.latency_to_float32),
            f"{result.cosine or 0:.4f}",
        ]
        lines.append([f"{result.encoding} {result.precision}", *cells, *figures])
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
    for result in document.rows:
        if result.status != "measured":
            continue
        cells = [" ".join(shown(cell).rjust(5) for cell in of_task.values()) for of_task in result.accuracy.values()]
        size = f"{(result.file_bytes or 0) / 1e3:.0f}"
        costs = [f"{result.parameters}", size, ratio(result.latency_to_nope), ratio(result.memory_to_nope)]
        lines.append([result.encoding, *cells, *costs])
    text = _aligned(lines)
    if document.precisions:
        text += ["", *_aligned(_at_precisions(document, lengths))]
    for status in ("failed", "not applicable"):
        text += [f"{result.encoding}: {status}: {result.reason}" for result in document.rows if result.status == status]
    chances = ", ".join(f"{task.name} {shown(task.chance)}" for task in document.tasks)
    differ = "" if document.noise is None else f" (two sessions of nope differ by {100 * document.noise:.0f} %)"
    return "\n".join([*text, f"guessing: {chances}; latency and memory are relative to nope{differ}"])

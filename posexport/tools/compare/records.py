"""What a comparison is asked for and what comes of it, as it is written to disk. Imports no torch."""

from pathlib import Path
from typing import Literal

import msgspec

from posexport.targets.precisions import FP32, PrecisionName

LIMIT = "limit"
#: an accuracy this far above guessing is no accident
LEARNED = 0.1
#: a share of right answers, or `LIMIT` where the graph refuses that length
Cell = float | Literal["limit"]


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides the figures: the model's sizes, its training, and how it is measured."""

    steps: int = 200
    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    feedforward: int = 256
    #: tokens of a row in training; it is asked at once, twice and four times this length
    length: int = 64
    #: rows of one training step
    rows: int = 96
    #: rows that an accuracy is measured on
    asked_rows: int = 200
    #: rows of the call whose time and memory are measured, at the trained length
    timed_rows: int = 64
    #: timed calls of each model, interleaved with those of nope
    timed_runs: int = 15
    #: that every model is exported in too, beside float32
    precisions: list[PrecisionName] = []
    #: versions of what trains, exports and runs
    tools: dict[str, str] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.length, 2 * self.length, 4 * self.length


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time and memory of an encoding.

    ``ms``: the median of a call; ``to_nope``: the median of its ratios to calls of ``nope`` just before and after, of
    ``nope`` itself to those of another process. ``growth``: bytes by which calls raised a fresh process's memory; None
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


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
    """Where a model in another precision stands: ``rope.onnx`` -> ``rope.int8.onnx``."""
    return model.with_name(f"{model.stem}.{precision}{model.suffix}")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A question, for readers."""

    name: str
    question: str
    answers: int
    chance: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    setup: Setup
    lengths: list[int]
    tasks: list[TaskInfo]
    rows: list[Row]
    #: the same models in further precisions
    precisions: list[Row] = []
    #: by what share two sessions of ``nope`` differed in latency
    noise: float | None = None

    @property
    def good(self) -> bool:
        return all(row.status != "failed" for row in self.rows)

    @property
    def verdict(self) -> str:
        """``passed``, or ``failed:`` and the encodings that could not be trained or exported."""
        failed = [row.encoding for row in self.rows if row.status == "failed"]
        return f"failed: {', '.join(failed)}" if failed else "passed"

    @property
    def learned(self) -> list[str]:
        """Encodings that answer a question clearly better than guessing at the trained length."""
        length, chance = str(self.lengths[0]), {task.name: task.chance for task in self.tasks}
        return [
            row.encoding
            for row in self.rows
            if any(
                isinstance(cell := cells.get(length), float) and cell > chance[task] + LEARNED
                for task, cells in row.accuracy.items()
            )
        ]

    def to_json(self) -> bytes:
        document = {"verdict": self.verdict, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

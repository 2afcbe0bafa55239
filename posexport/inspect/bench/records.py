"""The results of a benchmark, as they are written to disk. Imports no torch."""

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

#: outputs that differ by more, relative to the largest entry, are wrong
LARGEST_DIFFERENCE = 1e-3
#: if two interleaved runs of the baseline differ by more, the machine was not quiet
LARGEST_SPREAD = 0.05


Clock = Literal["wall", "cpu"]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the document's objects."""


class Point(_Record, frozen=True, kw_only=True):
    """The sizes of a timed call: ``new`` tokens of every row after ``past`` tokens in the KV cache.

    ``padding``: the share of these tokens that is padding, on the right of rows of different lengths.
    """

    batch: int = 1
    past: int = 0
    new: int = 1
    padding: float = 0

    @property
    def text(self) -> str:
        rows = "" if self.batch == 1 else f", batch {self.batch}"
        rows += f", {self.padding:.0%} padding" if self.padding else ""
        return (
            f"{f'past {self.past}, ' if self.past else ''}{self.new} new{rows}"
            if self.past
            else f"length {self.new}{rows}"
        )


class Figure(_Record, frozen=True, kw_only=True):
    """One candidate at one point; ``failed`` or ``left_out`` says why there are no figures.

    Attributes:
        ms: the median of all timed calls.
        least, low, high: the fastest call, and the quartiles.
        rounds: the median of each process.
        to_baseline: the median ratio of a call's time to the baseline's calls just before and after it.
        ratios: the same of each process (of the baseline: between two of its processes).
        cpu_ms: the median of a call's processor time in all threads, which other load changes less.
        peak: the peak memory of the process in bytes.
        growth: bytes by which calls raised the memory after loading, inputs and outputs included.
        above: the same without inputs and outputs.
        difference: of the output from ``reference``'s, the first candidate with the same weights, relative to the
            largest entry (None: it is the first, or the difference is not finite).
        cosine: with that output, if one of the two has a precision below float32.
        wrong: the output disagrees with these weights, so that the time is meaningless.
        by_posexport: ``posexport convert`` wrote the graph.
        nodes: of the graph, with functions counted once.
        reads: bytes of weights that a decode step reads: all but the table of embeddings.
        export_seconds, export_peak: the time and memory of the export.
        remark: the exporter's remark on the checkpoint.
    """

    candidate: str
    by_posexport: bool
    failed: str | None = None
    left_out: str | None = None
    ms: float | None = None
    least: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: list[float] = []
    to_baseline: float | None = None
    ratios: list[float] = []
    peak: int | None = None
    growth: int | None = None
    above: int | None = None
    cpu_ms: float | None = None
    load_seconds: float | None = None
    difference: float | None = None
    cosine: float | None = None
    wrong: bool = False
    nodes: int | None = None
    reads: int | None = None
    export_seconds: float | None = None
    export_peak: int | None = None
    remark: str | None = None
    reference: str | None = None


class Result(_Record, frozen=True, kw_only=True):
    """All candidates at one point. ``valid``: the machine was quiet; otherwise ``reason`` says what was seen."""

    model: str
    point: Point
    baseline: str
    valid: bool
    reason: str | None
    figures: list[Figure]

    @property
    def quiet(self) -> "Result":
        """Without times and memory, unless the machine was quiet."""
        if self.valid:
            return self
        measured = ("ms", "least", "low", "high", "to_baseline", "peak", "growth", "above", "cpu_ms", "load_seconds")
        unknown: dict[str, Any] = {**dict.fromkeys(measured), "rounds": [], "ratios": []}
        figures = [msgspec.structs.replace(figure, **unknown) for figure in self.figures]
        return msgspec.structs.replace(self, figures=figures)


class Held(_Record, frozen=True, kw_only=True):
    """A candidate's process after ``calls`` batches of mixed sizes; ``failed``: why there are no figures.

    In bytes of resident memory: ``loaded`` before the first call, ``held`` after the last, ``most`` between two calls.
    """

    candidate: str
    calls: int
    loaded: int = 0
    held: int = 0
    most: int = 0
    failed: str | None = None


class Machine(_Record, frozen=True, kw_only=True):
    """Where it ran. ``memory`` in bytes; ``load``: processes that wanted to run in the minute before."""

    cpu: str
    cores: int
    memory: int | None
    system: str
    load: float | None


class Document(_Record, frozen=True, kw_only=True):
    """One run. ``seconds``: all of it; ``mixed``: memory after batches of mixed sizes, with ``--mixed``.

    ``advice``: which way to take, with ``--compare``.

    ``clock``: what times are: ``wall``, or processor time (``cpu``) on a machine with other load.
    """

    suite: str
    threads: int
    provider: str
    rounds: int
    clock: Clock = "wall"
    machine: Machine
    commit: str | None
    created: str
    seconds: float
    versions: dict[str, str]
    results: list[Result]
    mixed: list[Held] = []
    advice: list[str] = []

    @property
    def valid(self) -> bool:
        return all(result.valid for result in self.results)

    @property
    def failed(self) -> list[str]:
        """Candidates of posexport without figures or with wrong outputs."""
        figures = [figure for result in self.results for figure in result.figures]
        return [
            figure.candidate
            for figure in figures
            if figure.by_posexport and (figure.failed is not None or figure.wrong)
        ] + [candidate.candidate for candidate in self.mixed if candidate.failed is not None]

    def to_json(self) -> bytes:
        """One JSON document that people can read."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def figure(
    name: str,
    rounds: Sequence[Sequence[float]],
    ratios: Sequence[Sequence[float]] = (),
    *,
    by_posexport: bool,
    **more: Any,
) -> Figure:
    """The figure of a candidate from the times of its rounds, in milliseconds, and their ratios to the baseline's."""
    times = [ms for values in rounds for ms in values]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return Figure(
        candidate=name,
        by_posexport=by_posexport,
        ms=middle,
        least=min(times),
        low=low,
        high=high,
        rounds=[statistics.median(values) for values in rounds],
        to_baseline=statistics.median([ratio for values in ratios for ratio in values]) if ratios else None,
        ratios=[statistics.median(values) for values in ratios],
        **more,
    )


def judge(ratios: Sequence[Sequence[float]]) -> str | None:
    """Why ratios of one run of the baseline to another make a figure not valid; None where they do not."""
    middle = statistics.median([ratio for values in ratios for ratio in values])
    spread = max(middle, 1 / middle) - 1
    if spread <= LARGEST_SPREAD:
        return None
    return f"two runs of the baseline differ by {100 * spread:.0f}%, more than {100 * LARGEST_SPREAD:.0f}%"

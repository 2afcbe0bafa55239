"""Runs a graph that another tool made, with its KV cache, and judges what it does beyond the source's limits.

The graph may reject inputs beyond the limits with any message. If it computes them, the outputs must be the
definition's; where the definition has none, because its table has ended, that is a finding. Imports no torch.

Shape letters: B rows, T new tokens, V vocabulary.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.bounds import Bound
from posexport.base.spec import BATCH, LOGITS, PAST, SEQUENCE, TOTAL, InputSpec, Interface, compared_outputs
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.proof.criterion import Array, measure
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import Budget, GridPoint
from posexport.proof.judges import Answer, broken
from posexport.proof.proof import Judge, Outcome, Proof, Run, Subject
from posexport.proof.report.points import Point
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import Make, RunError, Runner, in_calls
from posexport.run.cache import Cache, DecoderInterface, Ids

if TYPE_CHECKING:
    from posexport.proof.foreign.fit import Foreign


class ForeignRunner(Runner):
    """A `Runner` that is fed by the source's names and conventions, and called by the graph's."""

    def __init__(
        self,
        foreign: "Foreign",
        model: Path | bytes,
        *,
        provider: str = DEFAULT_PROVIDER,
        threads: int = 0,
        make: Make | None = None,
    ) -> None:
        inputs, outputs = list(foreign.declared), list(foreign.outputs)
        super().__init__(model, inputs=inputs, outputs=outputs, provider=provider, threads=threads, make=make)
        self._foreign = foreign
        self._read: Feeds = {}
        self._kept: list[Array] = []

    def _check(self, inputs: set[str]) -> None:
        """It may take and give more: `posexport.proof.foreign.fit` has looked at both."""

    def feeds(self, feeds: Feeds) -> Feeds:
        """What the graph takes, in the types that it declares."""
        return super().feeds(self._foreign.feeds(feeds))

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs in the requested order; raises RunError with ONNX Runtime's message."""
        past = [spec for spec in self._foreign.source.inputs if PAST in spec.axes]
        later = past and feeds[past[0].name].shape[past[0].axes.index(PAST)] > 0
        if later and self._foreign.crossed:
            feeds = {**feeds, **self._crossed(feeds)}
        return super().__call__(feeds)

    def _crossed(self, feeds: Feeds) -> Feeds:
        """Keys and values of the encoder's states: a call without a past gives them, once for the same states."""
        read = {spec.name: feeds[spec.name] for spec in self._foreign.source.inputs if _of_states(spec)}
        if not self._read or not all(np.array_equal(read[name], self._read[name]) for name in read):
            first = dict(read)
            for spec in self._foreign.source.inputs:
                if SEQUENCE in spec.axes or TOTAL in spec.axes:
                    first[spec.name] = feeds[spec.name][:, :1]
                elif PAST in spec.axes:
                    first[spec.name] = np.take(feeds[spec.name], [], axis=spec.axes.index(PAST))
            before, self.outputs = self.outputs, list(self._foreign.crossed.values())
            try:
                self._kept = super().__call__(first)
            finally:
                self.outputs = before
            self._read = read
        return dict(zip(self._foreign.crossed, self._kept, strict=True))

    def cache(
        self, of: DecoderInterface, *, rows: int, room: int, fixed: Mapping[str, NDArray[Any]] | None, provider: str
    ) -> Cache:
        """A runner that also feeds the graph's inputs beyond tokens, mask and past."""
        del room, provider  # it grows, and lies in memory
        return FedCache(self, of, rows=rows, fixed=fixed)


def _of_states(spec: InputSpec) -> bool:
    """Whether the input is about the sequence that is attended to."""
    return not {SEQUENCE, TOTAL, PAST} & set(spec.axes)


class FedCache(Cache):
    """A `Cache` that calls a runner and passes its arrays on."""

    def __init__(
        self, runner: ForeignRunner, of: DecoderInterface, *, rows: int, fixed: Mapping[str, NDArray[Any]] | None
    ) -> None:
        self._runner, self._decoder = runner, of
        self._given = dict(fixed or {})
        self._names = list(runner.outputs)
        self.clear(rows)

    def clear(self, rows: int) -> None:
        """Clears the cache for ``rows`` sequences and returns nothing."""
        self.mask_BS = np.zeros((rows, 0), dtype=np.int64)
        self.ids_BS = np.zeros((rows, 0), dtype=np.int64)
        sizes = {BATCH: rows, PAST: 0}
        self._past = {
            spec.name: np.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes], spec.dtype)
            for spec in self._decoder.past
        }

    def read(self, ids_BT: Ids, keep_BT: Ids) -> NDArray[Any]:
        """Read more tokens of every row, and give the logits after the last of them, [B, V]."""
        mask_BS = np.concatenate((self.mask_BS, keep_BT), 1)
        feeds = {self._decoder.tokens.name: ids_BT, self._decoder.mask.name: mask_BS, **self._given, **self._past}
        outputs = dict(zip(self._names, self._runner(feeds), strict=True))
        self._past = dict(zip(self._past, (outputs[name] for name in self._decoder.present), strict=True))
        self.mask_BS, self.ids_BS = mask_BS, np.concatenate((self.ids_BS, ids_BT), 1)
        last_BV: NDArray[Any] = outputs[LOGITS][:, -1]
        return last_BV

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only some rows, and drop the padding that they have in common on the left."""
        index = np.asarray(rows)
        self.mask_BS, self.ids_BS = self.mask_BS[index], self.ids_BS[index]
        start = int(np.argmax(self.mask_BS.any(0)))
        self.mask_BS, self.ids_BS = self.mask_BS[:, start:], self.ids_BS[:, start:]
        for spec in self._decoder.past:
            reordered = np.take(self._past[spec.name], index, axis=spec.axes.index(BATCH))
            axis = spec.axes.index(PAST)
            self._past[spec.name] = np.take(reordered, range(start, reordered.shape[axis]), axis=axis)
        self._given = {name: array[index] for name, array in self._given.items()}


#: of a message, so much is quoted
_QUOTED = 200


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """Judges another tool's graph on inputs outside ``bounds``.

    ``definition`` returns functions that run it by PyTorch, in float64 and in the graph's precision, if needed.
    """

    model: Interface
    bounds: Sequence[Bound]
    definition: Callable[[], Sequence[Run]]
    values: Judge
    budget: Budget

    def judge(self, subject: Subject, point: GridPoint) -> Answer:
        """Any failure is a rejection; outputs are right if they are the definition's."""
        feeds = draw(point, self.model.inputs)
        outside = " or ".join(bound.message for bound in broken(self.bounds, self.model, point))
        try:
            outputs = in_calls(subject, feeds, self.model, point.calls)
        except RunError as failure:
            return Answer(True, f"rejected: {own_words(str(failure))}")
        answered = f"it answers an {outside}"
        if not self.budget.fits(point):
            return Answer(False, f"{answered}; there is no memory to see what the source gives there")
        try:
            truth, baseline_outputs = (in_calls(run, feeds, self.model, point.calls) for run in self.definition())
        except (IndexError, RuntimeError, ValueError):  # what PyTorch raises beyond a table
            return Answer(False, f"{answered}, where the source has no positions and gives nothing")
        for y, y64, baseline, spec in zip(outputs, truth, baseline_outputs, compared_outputs(self.model), strict=True):
            error = measure(y, y64, spec.axes, None).error
            largest = measure(baseline, y64, spec.axes, None).error
            limit = self.values.tolerance(point.length, spec.name, largest if np.isfinite(largest) else 0.0)
            if not error <= limit:
                return Answer(False, f"{answered}, and {spec.name} is off by {error:.1e}, {limit:.1e} is allowed")
        return Answer(True, f"answered as the source computes it, though it is an {outside}", answered=True)


def own_words(message: str) -> str:
    """ONNX Runtime's failure, shortly: which operator, and what it says."""
    if match := re.search(r"while running (\w+) node\. Name:'([^']*)' (?:Status Message: )?(.*)", message):
        node = f" node {match[2]}" if match[2] else ""
        # files and lines of ONNX Runtime's sources are of no use to users
        said = re.sub(r"^\S+\.(?:cc|h|cu):\d+ [^()]*\([^()]*\)\s*(?:.*? was false\. )?", "", match[3]).strip()
        text = f"{match[1]}{node}: {said or match[3]}"
    else:
        text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message)
    return text if len(text) <= _QUOTED else text[: _QUOTED - 3].rstrip() + "..."


@dataclass(frozen=True)
class Findings:
    """The check; ``limit``: of the source, in tokens."""

    limit: int | None

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with its findings, and with what was shown where there are none."""
        del proof, outcome
        shown = conclusion(report.points, self.limit, chosen=bool(report.lengths))
        return msgspec.structs.replace(report, findings=findings(report.points), conclusion=shown)


def findings(points: Sequence[Point]) -> list[str]:
    """A line for each kind of answer that should have been a refusal, with all its lengths."""
    lengths: dict[str, list[str]] = {}
    for point in points:
        if point.verdict == "fail" and not point.output:
            lengths.setdefault(point.note, []).append(point.point.size)
    return [f"at length {', '.join(dict.fromkeys(sizes))}: {note}" for note, sizes in lengths.items()]


def conclusion(points: Sequence[Point], limit: int | None, *, chosen: bool) -> str | None:
    """What was shown, in words, where inputs beyond the limit were tried and refused; None where something failed.

    ``chosen``: the user said at which lengths.
    """
    refused = [p for p in points if p.verdict == "rejected" and limit is not None and p.length > limit]
    right = [p for p in points if p.verdict == "pass"]
    if not (refused and right) or any(point.verdict == "fail" for point in points):
        return None
    words = dict.fromkeys(point.note.removeprefix("rejected: ") for point in refused)
    sizes = list(dict.fromkeys(point.point.size for point in right))
    where = f"length {', '.join(sizes)}" if chosen else f"every length up to {limit}"
    return f"values right at {where}; rejects longer inputs: {next(iter(words))}"

"""States between tokens: rows with padding anywhere, every way to split a row, and states that are really read.

A row that is read in several calls, with padding on either side of each, has the logits that its author's forward has
for the row alone, in one call without padding and without a cache, and after it the states that the definition has
then. No point of the grid has tokens after padding, and only these show a recurrence that decays at padding. A state
that is constant, or that no later token depends on, is a failure.

Shape letters: B batch, T tokens, S past and new tokens, V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from posexport.base.example_inputs import random_ids
from posexport.base.spec import BATCH, CAPACITY, LOGITS, PAST, Axis, State
from posexport.proof.criterion import Array, Measured, measure
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Outcome, Proof, Run
from posexport.proof.report.points import Invariant
from posexport.proof.report.points import Outcome as Verdict
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError
from posexport.run.cache import DecoderInterface, Ids, decoder_interface, of_text

if TYPE_CHECKING:
    from posexport.proof.references.definition import DefinitionReference

#: for every call the number of tokens of each row, and the side on which shorter rows are padded
Calls = Sequence[tuple[Sequence[int], str]]
#: lengths of the rows
ROWS = (19, 12, 5)
WAYS: dict[str, Calls] = {
    "one row token by token": [((1,), "left")] * ROWS[0],
    "one row in chunks of 1, 2, 3 and 13": [((count,), "left") for count in (1, 2, 3, 13)],
    "one row in halves": [((9,), "left"), ((10,), "left")],
    "rows padded on the left, then steps": [((16, 9, 2), "left"), *[((1, 1, 1), "left")] * 3],
    "rows with tokens behind padding": [
        ((8, 5, 2), "right"),
        ((1, 0, 1), "left"),
        ((4, 4, 1), "left"),
        ((2, 1, 0), "right"),
        ((4, 2, 1), "right"),
    ],
}
#: tokens of the call after which states are changed
_FIRST = 11


@dataclass(frozen=True)
class StatesHold:
    """The check."""

    reference: "DefinitionReference"
    subject: Run

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with an invariant for each way to read rows, for shuffled states and for states that are read."""
        proof.progress(0, 0, "states between tokens")
        least: dict[str, float] = {}
        for (_, output), limit in outcome.tolerances.items():
            least[output] = max(least.get(output, 0.0), limit)
        invariants = check(self.reference, self.subject, proof, least)
        return msgspec.structs.replace(report, invariants=[*report.invariants, *invariants])


def check(
    reference: "DefinitionReference", subject: Run, proof: Proof, least: Mapping[str, float]
) -> Iterator[Invariant]:
    """Returns the results; none for a model without states or without logits.

    ``least``: by output, the tolerance at the grid's points, which are more: rounding may choose another expert.
    """
    source, limit = reference.source, reference.source.limits.max_length
    decoder = decoder_interface(source.inputs, source.outputs)
    if decoder is None or not any(spec.role == "state" for spec in decoder.past):
        return
    if limit is not None and limit < ROWS[0]:
        yield _judged("states between tokens", "skipped", note=f"{ROWS[0]} tokens are read, and it takes {limit}")
        return
    names = [spec.name for spec in source.outputs]
    rng = np.random.default_rng(ROWS)
    rows = [random_ids(decoder.tokens, (length,), rng) for length in ROWS]
    images = dict((source.limits.proof_sizes or [{}])[0])
    readings = [_Reading(run, decoder, names, images) for run in (subject, reference.baseline, reference.truth)]
    alone = [_alone(reference, readings[2], ids) for ids in rows]
    axes: dict[str, Sequence[Axis]] = {spec.name: spec.axes for spec in source.outputs}
    try:
        for name, calls in WAYS.items():
            count = len(calls[0][0])
            values = [reading.rows(rows[:count], calls) for reading in readings]
            right = _Read.of_rows(alone[:count])
            yield _compared(f"{name}: logits and states of each row alone", values, right, axes, proof, least)
        start = readings[2].shuffled(rows[0], rng)
        values = [reading.rows(rows[1:2], [((ROWS[1],), "left")], start) for reading in readings]
        yield _compared("one row behind shuffled states", values, values[-1], axes, proof, least)
        yield _read_and_changed(readings[0], rows[0])
    except RunError as failure:
        yield _judged("states between tokens", "fail", note=f"ONNX Runtime failed: {failure}")


@dataclass(frozen=True)
class _Read:
    """The logits of all tokens of all rows, one row after the other, and the states after them, by output."""

    outputs: dict[str, Array]

    @classmethod
    def of_rows(cls, rows: "Sequence[_Read]") -> "_Read":
        return cls({name: np.concatenate([row.outputs[name] for row in rows]) for name in rows[0].outputs})


class _Reading:
    """A program that reads rows in calls.

    ``names``: of its outputs. ``sizes``: of axes of inputs that the decoder does not read, for example images.
    """

    def __init__(self, run: Run, decoder: DecoderInterface, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        self.run, self.decoder, self.names, self.sizes = run, decoder, names, tuple(sizes.items())

    def empty(self, rows: int) -> Feeds:
        """The cache and the states before the first token."""
        sizes = {BATCH: rows, PAST: 0, CAPACITY: 2 * ROWS[0]}
        return {
            spec.name: np.full(
                [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes],
                spec.state.reset if isinstance(spec.state, State) else 0,
                spec.dtype,
            )
            for spec in self.decoder.past
        }

    def shuffled(self, ids: Ids, rng: np.random.Generator) -> Feeds:
        """The states after a row, each with its values in random order, and an empty cache."""
        _, after = self.call(ids[None], np.ones_like(ids[None]), self.empty(1))
        past = self.empty(1)
        for spec in self.decoder.past:
            if spec.role == "state":
                values = rng.permuted(after[spec.name].ravel())
                past[spec.name] = values.reshape(past[spec.name].shape).astype(spec.dtype)
        return past

    def call(self, ids_BT: Ids, mask_BS: Ids, past: Feeds) -> tuple[Array, Feeds]:
        """The logits [B, T, V], and what the next call takes."""
        decoder = self.decoder
        other = draw(GridPoint(batch=len(ids_BT), length=ROWS[0], sizes=self.sizes), decoder.fixed)
        text = {decoder.tokens.name: ids_BT, decoder.mask.name: mask_BS, **of_text(decoder, ids_BT)}
        feeds = {**other, **text, **past}
        outputs = dict(zip(self.names, self.run(feeds), strict=True))
        return outputs[LOGITS], dict(zip(past, (outputs[name] for name in decoder.present), strict=True))

    def rows(self, rows: Sequence[Ids], calls: Calls, past: Feeds | None = None) -> _Read:
        """The logits [tokens, V] and the states of every row."""
        past = past or self.empty(len(rows))
        mask = np.zeros((len(rows), 0), np.int64)
        logits: list[list[Array]] = [[] for _ in rows]
        done = [0] * len(rows)
        for counts, side in calls:
            # each row's next tokens, at the side that is not padded
            width = max(counts)
            ids = np.full((len(rows), width), self.decoder.tokens.padding, np.int64)
            new = np.zeros_like(ids)
            places = [slice(0, n) if side == "right" else slice(width - n, width) for n in counts]
            for index, (count, place) in enumerate(zip(counts, places, strict=True)):
                ids[index, place], new[index, place] = rows[index][done[index] : done[index] + count], 1
                done[index] += count
            mask = np.concatenate((mask, new), 1)
            y, past = self.call(ids, mask, past)
            for index, place in enumerate(places):
                logits[index].append(y[index, place])
        after = zip(self.decoder.past, self.decoder.present, strict=True)
        states = {name: past[spec.name] for spec, name in after if spec.role == "state"}
        return _Read({LOGITS: np.concatenate([part for parts in logits for part in parts]), **states})


def _alone(reference: "DefinitionReference", truth: _Reading, ids: Ids) -> _Read:
    """A row in one call in float64; its logits by its author's forward, of quantized weights by the definition."""
    whole = truth.rows([ids], [((len(ids),), "left")])
    if not hasattr(reference.source.module, "uncached_logits"):
        return whole

    def forward(module: Any) -> Array:
        ids_1T = torch.from_numpy(ids)[None]
        logits: Array = module.uncached_logits(ids_1T, torch.ones_like(ids_1T))[0].numpy()
        return logits

    return _Read({**whole.outputs, LOGITS: reference.truth.asked(forward)})


def _compared(
    name: str,
    values: Sequence[_Read],
    right: _Read,
    axes: Mapping[str, Sequence[Axis]],
    proof: Proof,
    least: Mapping[str, float],
) -> Invariant:
    """All rows' logits and states against those that are right; the verdict on the one nearest to its tolerance.

    ``values``: of the graph, and of the definition in the graph's precision and in float64, in the same calls. The
    difference of these two is rounding, whatever the definition does wrong.
    """
    worst: tuple[float, str, Measured, float] | None = None
    for output, alone in right.outputs.items():
        y, baseline, y64 = (read.outputs[output] for read in values)
        sizes = ["rows", *axes[output][1:]] if output != LOGITS else ["tokens", y.shape[-1]]
        error, rounding = measure(y, alone, sizes, None), measure(baseline, y64, sizes, None).error
        rounding = rounding if np.isfinite(rounding) else 0.0
        limit = max(least.get(output, 0.0), proof.judge.tolerance(ROWS[0], output, rounding))
        share = error.error / limit if limit else error.error
        if worst is None or not share <= worst[0]:
            worst = share, output, error, limit
    assert worst is not None
    _, output, error, limit = worst
    if error.error <= limit:
        return _judged(name, "pass", output=output, error=error.error, tolerance=limit)
    finite = error.error if np.isfinite(error.error) else None
    note = error.note or f"error {error.error:.1e} of {output} exceeds {limit:.1e}"
    return _judged(name, "fail", output=output, error=finite, tolerance=limit, note=note)


def _read_and_changed(reading: _Reading, ids: Ids) -> Invariant:
    """Every state is another one after more tokens, and with any of them reset the next tokens have other logits."""
    name = "every state is changed and read"
    ids_1T = ids[None]
    mask: NDArray[np.int64] = np.ones_like(ids_1T)
    _, past = reading.call(ids_1T[:, :_FIRST], mask[:, :_FIRST], reading.empty(1))
    logits, after = reading.call(ids_1T[:, _FIRST:], mask, past)
    first = reading.empty(1)
    for spec in reading.decoder.past:
        if spec.role != "state":
            continue
        held = spec.name
        if np.array_equal(past[held], after[held]) or np.array_equal(past[held], first[held]):
            return _judged(name, "fail", note=f"{held} is the same whatever was read")
        reset, _ = reading.call(ids_1T[:, _FIRST:], mask, {**past, held: first[held]})
        if np.array_equal(reset, logits):
            return _judged(name, "fail", note=f"no logit depends on {held}")
    return _judged(name, "pass")


def _judged(
    name: str,
    verdict: Verdict,
    *,
    output: str = LOGITS,
    error: float | None = None,
    tolerance: float | None = None,
    note: str = "",
) -> Invariant:
    return Invariant(
        name=name, length=ROWS[0], output=output, error=error, tolerance=tolerance, verdict=verdict, note=note
    )

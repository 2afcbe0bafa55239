"""Every point three ways: PyTorch in float64 (truth), PyTorch in the model's precision (baseline), ONNX Runtime."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.errors import PosexportError
from posexport.parity.criterion import NOT_FINITE, Array, Measured, RealTokens, measure
from posexport.parity.grid.conditioning import inputs_of
from posexport.parity.grid.inputs import Feeds, token_mask
from posexport.parity.grid.point import GridPoint
from posexport.parity.run import baseline_error
from posexport.parity.run.calls import in_calls, whole
from posexport.parity.run.reference import fingerprint
from posexport.parity.run.sample import SampleWriter
from posexport.parity.run.setup import Setup
from posexport.parity.run.subject import RunError
from posexport.sources.source import Source
from posexport.targets.dtypes import MODEL_DTYPE

#: by length and output
PerLength = Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Value:
    """One output at one point, before the verdict. ``measured``: None where ONNX Runtime raised, as ``note`` says."""

    point: GridPoint
    output: str
    baseline: float
    measured: Measured | None
    note: str = ""


@dataclass(frozen=True)
class Measurements:
    """What came out of all points.

    Attributes:
        baseline: PyTorch's largest error at a length.
        skipped: the points for which there was no memory, with the reason.
        room: the bytes that a point could take.
        stateful: the definition gives other outputs when it is called again.
    """

    values: list[Value]
    baseline: PerLength
    skipped: dict[GridPoint, str]
    room: int
    stateful: bool


def measure_points(
    setup: Setup, points: Sequence[GridPoint], sample: SampleWriter | None = None, *, fresh: bool = False
) -> Measurements:
    """Run ``points``; ``fresh``: every call of the definition with a copy of its own, for modules that keep state.

    ``sample`` is filled with some of them.
    """
    runner = PointRunner(setup, fresh=fresh)
    # asked when the copies exist, so that what is free is free for the points
    room = setup.room()
    accepted = [point for point in points if not point.refusal]
    skipped = setup.too_large(accepted, room)
    fitting = [point for point in accepted if point not in skipped]
    if sample is not None:
        if not fitting:
            reason = next(iter(skipped.values()), "the grid is empty")
            raise PosexportError(
                f"{setup.source.name}: not one point can be checked: {reason}; give a shorter --length"
            )
        sample.choose(fitting, setup.source)
    first = "" if fresh or not fitting else runner.fingerprint(fitting[0])
    values: list[Value] = []
    for done, point in enumerate(fitting):
        setup.progress(done, len(fitting), f"proving, {point}")
        values += runner.run(point, sample)
    baseline = _largest([*_finite(values), *runner.more_baseline(fitting)])
    stateful = bool(first) and runner.fingerprint(fitting[0]) != first
    setup.progress(len(fitting), len(fitting), "")
    return Measurements(values, baseline, skipped, room, stateful)


class PointRunner:
    """Runs single points, with one copy of the definition in each precision."""

    def __init__(self, setup: Setup, *, fresh: bool) -> None:
        self._setup, self._source = setup, setup.source
        self._truth, self._baseline = setup.references(fresh=fresh)
        self._whole_truth, self._whole_baseline = (whole(run, self._source) for run in (self._truth, self._baseline))

    def run(self, point: GridPoint, sample: SampleWriter | None) -> list[Value]:
        """The values of all outputs."""
        source = self._source
        feeds = inputs_of(point, source, self._whole_baseline)
        keeps = [token_mask(point, source.inputs, spec) for spec in source.outputs]
        # a schedule that looks at the running length has other values in one call: then the same calls are the truth
        calls = point.calls if source.envelope.length_dependent else ()
        truth = in_calls(self._truth, feeds, source, calls)
        # one precision's outputs at a time: logits over a vocabulary are large
        errors = self._errors(in_calls(self._baseline, feeds, source, calls), truth, keeps)
        _check_finite(source, point, errors)
        measured, failure = self._subject(point, feeds, truth, keeps)
        if sample is not None:
            sample.add(point, feeds, truth, keeps)
        return [
            Value(point, spec.name, error.error, value, failure or error.note)
            for spec, error, value in zip(source.outputs, errors, measured, strict=True)
        ]

    def _errors(self, outputs: Sequence[Array], truth: Sequence[Array], keeps: Sequence[RealTokens]) -> list[Measured]:
        compared = zip(outputs, truth, self._source.outputs, keeps, strict=True)
        return [measure(y, y64, spec.axes, keep_BT) for y, y64, spec, keep_BT in compared]

    def _subject(
        self, point: GridPoint, feeds: Feeds, truth: Sequence[Array], keeps: Sequence[RealTokens]
    ) -> tuple[Sequence[Measured | None], str]:
        """The graph's errors, or why there are none."""
        try:
            outputs = in_calls(self._setup.subject, feeds, self._source, point.calls)
        except RunError as err:
            return [None] * len(truth), f"ONNX Runtime failed: {err}"
        errors = self._errors(outputs, truth, keeps)
        if self._setup.precision == MODEL_DTYPE.precision:
            pairs = zip(outputs, errors, strict=True)
            errors = [error if y.dtype == MODEL_DTYPE.name else _of_another_type(y) for y, error in pairs]
        return errors, ""

    def more_baseline(self, points: Sequence[GridPoint]) -> Iterator[tuple[tuple[int, str], float]]:
        """PyTorch's errors over more draws of every length, where the outputs of its points have few elements."""
        plain = [p for p in points if p.padding == "none" and not (p.calls or p.numbered)]
        for point in {point.length: point for point in plain}.values():
            ragged = self._source.envelope.ragged
            largest = baseline_error.errors(point, self._source, self._whole_truth, self._whole_baseline, ragged)
            for spec, error in zip(self._source.outputs, largest, strict=True):
                yield (point.length, spec.name), error

    def fingerprint(self, point: GridPoint) -> str:
        """Of what the definition computes at a point."""
        feeds = inputs_of(point, self._source, self._whole_baseline)
        return fingerprint([*self._whole_truth(feeds), *self._whole_baseline(feeds)])


def _of_another_type(y: Array) -> Measured:
    return Measured(np.inf, 0.0, f"{y.dtype} instead of {MODEL_DTYPE.name}")


def _finite(values: Sequence[Value]) -> Iterator[tuple[tuple[int, str], float]]:
    """PyTorch's errors; a reference that cannot be measured must not excuse the model."""
    for value in values:
        yield (value.point.length, value.output), value.baseline if np.isfinite(value.baseline) else 0.0


def _largest(errors: Sequence[tuple[tuple[int, str], float]]) -> PerLength:
    largest: dict[tuple[int, str], float] = defaultdict(float)
    for key, error in errors:
        largest[key] = max(largest[key], error)
    return dict(largest)


def _check_finite(source: Source, point: GridPoint, errors: Sequence[Measured]) -> None:
    """Raise PosexportError where a user's module itself gives NaN or an infinity for a token that is not padding.

    A definition of posexport's own that does is a failure of the proof, not of the input.
    """
    if source.kind != "python":
        return
    for spec, error in zip(source.outputs, errors, strict=True):
        if error.note == NOT_FINITE:
            raise PosexportError(
                f"{source.name}: output {spec.name} of the module itself is NaN or infinite at {point}, for tokens "
                "that are not padding; where all keys of a row can be masked, mask with torch.finfo(x.dtype).min "
                "instead of -inf"
            )

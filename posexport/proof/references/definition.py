"""The definition as the reference: PyTorch in float64 is the truth, in the graph's precision the baseline error.

The baseline uses more draws where an output has few elements. The error of a small output is the largest of
few elements: over 200 draws of a right model with three labels, PyTorch's and ONNX Runtime's errors have nearly the
same median (0.9e-6) and largest value (2.2e-6, 2.5e-6): seven are chance.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from posexport.base.spec import BATCH, CARRIED, TOKENS, InputSpec, Interface, OutputSpec, Padding, compared_outputs
from posexport.base.system.freed_memory import trim_grown
from posexport.base.targets.dtypes import BY_PRECISION, MODEL_DTYPE
from posexport.base.targets.precisions import PrecisionName
from posexport.errors import PosexportError
from posexport.proof.criterion import NOT_FINITE, Array, measure
from posexport.proof.grid.inputs import Feeds, draw, elements, inputs_of, size_of, token_mask
from posexport.proof.grid.point import Budget, GridPoint
from posexport.proof.proof import Case, PerLength, Progress, Run, Value
from posexport.proof.quantized.module import AsStored
from posexport.proof.references import padding_alone
from posexport.proof.references.computed import Computed
from posexport.proof.references.precision_copy import PrecisionCopy, fingerprint
from posexport.proof.sample.writer import SampleWriter
from posexport.proof.subjects.runner import digest, in_calls, whole
from posexport.sources.source import Source

#: elements of an output that make its largest error a matter of course
ENOUGH = 8192
#: the most additional draws, and tokens in all of them: of every length, and of one where something fails
MOST, FEW_TOKENS, MOST_TOKENS = 32, 512, 2048
#: tokens, pixels and the like of further draws that PyTorch computes at once, and bytes of their call in float32
_POSITIONS, _AT_ONCE = 16384, 1 << 28


def more_draws(point: GridPoint, model: Interface, tokens: int = MOST_TOKENS, found: Sequence[int] = ()) -> int:
    """How many points like ``point`` PyTorch is measured on besides the grid's; 0 where the outputs are large.

    ``tokens``: the most in all of them, frames of sound and other positions of inputs included. ``found``: elements of
    each output at the point, of which the axes may be no input's.
    """
    outputs = compared_outputs(model)
    counted = [elements(point, model.inputs, spec) for spec in outputs]
    few = min(
        count if set(spec.axes) & set(TOKENS) else max(count, size)
        for spec, count, size in zip(outputs, counted, found or counted, strict=True)
    )
    longest = max([point.tokens, *(size for spec in model.inputs for size in _positions(spec, point))])
    return max(0, min(MOST, ENOUGH // max(1, few) - 1, tokens // (point.batch * longest)))


def _positions(spec: InputSpec, point: GridPoint) -> list[int]:
    """The sizes of the axes along which an input has tokens, frames or samples; pixels are counted as patches."""
    if spec.role in CARRIED or point.image is not None:
        return []
    axes = [axis for axis in spec.axes if axis != BATCH]
    return [size_of(axis, point) for axis in [axis for axis in axes if isinstance(axis, str)] or axes]


def baseline_errors(
    point: GridPoint,
    model: Interface,
    truth: Callable[[Feeds], list[Array]],
    baseline: Callable[[Feeds], list[Array]],
    ragged: Padding | None = "ragged",
    tokens: int = MOST_TOKENS,
    found: Sequence[int] = (),
    held: Callable[[], int | None] = lambda: None,
) -> list[float]:
    """PyTorch's largest error for each output over `more_draws` like ``point``, run as batches of `_POSITIONS`.

    ``held``: bytes of one call in float32, where that is known: a module may fill up small images.
    """
    inputs, outputs, times = model.inputs, compared_outputs(model), more_draws(point, model, tokens, found)
    largest = [0.0] * len(outputs)
    masked = token_mask(point, inputs) is not None
    paddings: list[Padding] = ["none"]
    if ragged and masked and point.length > 1:
        # a row without padding is among them
        paddings = [ragged] if tokens < MOST_TOKENS else ["none", ragged]
    for padding in paddings if times else []:
        many = msgspec.structs.replace(point, batch=times * point.batch, padding=padding)
        feeds, draws = draw(many, inputs), min(times, _draws_at_once(point, inputs, held()))
        parts_of_rows = [slice(n * point.batch, (n + draws) * point.batch) for n in range(0, times, draws)]
        by_row = (_in_parts(run, feeds, model, parts_of_rows) for run in (baseline, truth))
        for index, (spec, y, y64) in enumerate(zip(outputs, *by_row, strict=True)):
            keep = token_mask(many, inputs, spec)
            parts: Array | list[Array] = np.arange(many.batch).reshape(times, point.batch) if BATCH in spec.axes else []
            measured = [
                measure(_take(y, spec, rows), _take(y64, spec, rows), spec.axes, None if keep is None else keep[rows])
                for rows in parts
            ]
            sound = [error for error in measured if np.isfinite(error.error) and error.scale]
            # a draw with a small output by chance must not widen the tolerance of the others
            usual = float(np.mean([error.scale for error in sound])) if sound else 0.0
            largest[index] = max(
                [largest[index], *(error.error * error.scale / max(error.scale, usual) for error in sound)]
            )
    return largest


def _draws_at_once(point: GridPoint, inputs: Sequence[InputSpec], held: int | None) -> int:
    """How many draws like ``point`` are one batch: of films few. All, where an input has no row for each of a batch."""
    if not all(BATCH in spec.axes for spec in inputs):
        return MOST
    positions = max([point.tokens, *(math.prod(_positions(spec, point)) for spec in inputs)])
    return max(1, min(_POSITIONS // (point.batch * positions), _AT_ONCE // (held or 1)))


def _in_parts(
    run: Callable[[Feeds], list[Array]], feeds: Feeds, model: Interface, parts: Sequence[slice]
) -> list[Array]:
    """``run(feeds)``, a part of the rows after the other."""
    if len(parts) == 1:
        return run(feeds)
    batched = {spec.name: spec.axes.index(BATCH) for spec in model.inputs}
    found = [run({name: x[(slice(None),) * batched[name] + (rows,)] for name, x in feeds.items()}) for rows in parts]
    return [
        np.concatenate(ys, spec.axes.index(BATCH)) if BATCH in spec.axes else ys[0]
        for spec, ys in zip(compared_outputs(model), zip(*found, strict=True), strict=True)
    ]


def _take(array: Array, spec: OutputSpec, rows: Array) -> Array:
    return np.take(array, rows, axis=spec.axes.index(BATCH))


class DefinitionReference:
    """One copy of the definition in each precision, or one for every call, for modules that keep state.

    ``device``: where PyTorch computes. ``sample`` is filled with some of the cases. ``watched``: find out whether the
    module keeps state, which costs a call of the first point. Raises PosexportError where there is not one, or where a
    user's module itself gives no numbers.
    """

    def __init__(
        self,
        source: Source,
        precision: PrecisionName,
        sample: SampleWriter | None = None,
        device: str = "cpu",
        *,
        watched: bool = True,
    ) -> None:
        self.source = source
        self._watched = watched
        self.precision = precision
        self._sample = sample
        self._device = device
        self._fresh = False
        #: what points gave at first
        self._first: list[tuple[GridPoint, str]] = []
        self._points: Sequence[GridPoint] = ()
        #: elements of the outputs, by length
        self._elements: dict[int, list[int]] = {}
        self._copy()

    def _copy(self) -> None:
        module, outputs = self.source.module, len(self.source.outputs)
        how: dict[str, Any] = {"outputs": outputs, "fresh": self._fresh, "device": self._device}
        # most parameters of a quantized definition are read in another form; float32's are the source's
        stored = isinstance(module, AsStored)
        narrow = BY_PRECISION[self.precision].torch
        self.truth = PrecisionCopy(module, torch.float64, share=stored, **how)
        as_they_are = narrow == MODEL_DTYPE.torch and not self.source.by_trial
        self.baseline = PrecisionCopy(module, narrow, share=stored or as_they_are, **how)
        #: of the last point of a model with a cache
        self._last: tuple[GridPoint, bytes, list[Computed]] | None = None

    @property
    def whole_truth(self) -> Run:
        """A sequence in one call, its caches without unused slots."""
        return whole(self.truth, self.source)

    @property
    def whole_baseline(self) -> Run:
        """The same in the graph's precision."""
        return whole(self.baseline, self.source)

    def start(self, points: Sequence[GridPoint], skipped: Mapping[GridPoint, str]) -> None:
        """Choose the sample, and remember what the first point gives."""
        self._points = points
        if self._sample is not None:
            if not points:
                reason = next(iter(skipped.values()), "the grid is empty")
                raise PosexportError(
                    f"{self.source.name}: not one point can be checked: {reason}; give a shorter --length"
                )
            self._sample.choose(points, self.source)
        watched = list(points[:1]) if self._watched and not self._fresh else []
        if watched and self.source.by_trial:  # a table of one token may be the same for all inputs
            watched += [point for point in points if point.tokens > points[0].tokens][:1]
        self._first = [(point, self._fingerprint(point)) for point in watched]

    def case(self, point: GridPoint) -> Case:
        """Inputs, and all outputs in float64 with PyTorch's error in the graph's precision."""
        source = self.source
        feeds = inputs_of(point, source, self.whole_baseline)
        truths = self._computed(point, feeds)
        if source.by_trial:
            # ids alone may be a row of padding, which has no key to attend to
            feeds, truths = padding_alone.drawn_again(point, source, feeds, truths, self._computed)
            _check_finite(source, point, truths)
        if self._sample is not None:
            self._sample.add(point, feeds, [truth.y64 for truth in truths], [truth.keep_BT for truth in truths])
        return Case(feeds, truths)

    def _computed(self, point: GridPoint, feeds: Feeds) -> list[Computed]:
        """All outputs in float64 with PyTorch's error in the graph's precision."""
        limits = self.source.limits
        if not limits.kv_cache or (point.calls and limits.length_dependent):
            return self._measured(point, feeds)
        # points that differ in their calls alone have one truth
        alone, content = msgspec.structs.replace(point, calls=()), digest(feeds)
        if self._last is None or self._last[:2] != (alone, content):
            self._last = None  # before the next takes as much memory
            trim_grown()
            self._last = alone, content, self._measured(alone, feeds)
        return self._last[2]

    def _measured(self, point: GridPoint, feeds: Feeds) -> list[Computed]:
        """What `_computed` returns, computed."""
        source = self.source
        keeps = [token_mask(point, source.inputs, spec) for spec in compared_outputs(source)]
        # a schedule that looks at the running length has other values in one call: then the same calls are the truth
        calls = point.calls if source.limits.length_dependent else ()
        truth, baseline = self.whole_truth, self.whole_baseline
        if calls:
            truth, baseline = (partial(in_calls, run, model=source, calls=calls) for run in (self.truth, self.baseline))
        y64s = truth(feeds)
        self._elements[point.length] = [y64.size for y64 in y64s]
        dtype = MODEL_DTYPE.name if self.precision == MODEL_DTYPE.precision else None
        # one precision's outputs at a time: logits over a vocabulary are large
        computed = zip(compared_outputs(source), baseline(feeds), y64s, keeps, strict=True)
        return [
            Computed(spec, y64, keep_BT, measure(y, y64, spec.axes, keep_BT), dtype)
            for spec, y, y64, keep_BT in computed
        ]

    def largest(self, values: Sequence[Value], progress: Progress, *, thorough: bool = False) -> PerLength:
        """Over the points of a length, and over more draws where outputs are small."""
        self._last = None  # all points had their case
        largest: dict[tuple[int, str], float] = defaultdict(float)
        of_points = ((value.point.length, value.output, value.baseline) for value in values)
        more = self._more(progress, MOST_TOKENS if thorough else FEW_TOKENS)
        for length, output, error in (*of_points, *more):
            # a reference that cannot be measured must not excuse the model
            largest[length, output] = max(largest[length, output], error if np.isfinite(error) else 0.0)
        return dict(largest)

    def _more(self, progress: Progress, tokens: int) -> Iterator[tuple[int, str, float]]:
        """PyTorch's errors over more draws of every length, where the outputs of its points have few elements."""
        source = self.source
        plain = [p for p in self._points if not (p.calls or p.cached or p.position_ids_given)]
        lengths = {point.length: msgspec.structs.replace(point, padding="none") for point in plain}
        for done, point in enumerate(lengths.values()):
            progress(
                done, len(lengths), f"PyTorch {self.precision} against float64, more inputs of length {point.length}"
            )
            ragged = source.limits.ragged
            found = self._elements.get(point.length, ())
            held = partial(Budget(outputs=source.outputs, call_bytes=source.call_bytes).held, point)
            errors = baseline_errors(point, source, self.whole_truth, self.whole_baseline, ragged, tokens, found, held)
            yield from (
                (point.length, spec.name, error) for spec, error in zip(compared_outputs(source), errors, strict=True)
            )

    def changed(self) -> bool:
        """Whether the first points give other bits now."""
        return any(self._fingerprint(point) != before for point, before in self._first)

    def renew(self) -> None:
        """A copy for every call from now on."""
        self._fresh = True
        self._copy()

    def _fingerprint(self, point: GridPoint) -> str:
        feeds = inputs_of(point, self.source, self.whole_baseline)
        return fingerprint([*self.whole_truth(feeds), *self.whole_baseline(feeds)])


def _check_finite(source: Source, point: GridPoint, truths: Sequence[Computed]) -> None:
    """Raise PosexportError where a user's module itself gives NaN or an infinity for a token that is not padding.

    A definition of posexport that does fails the proof; the input is valid.
    """
    for truth in truths:
        if truth.baseline.note == NOT_FINITE:
            raise PosexportError(
                f"{source.name}: output {truth.output} of the module itself is NaN or infinite at {point}, for tokens "
                "that are not padding; where all keys of a row can be masked, mask with torch.finfo(x.dtype).min "
                "instead of -inf"
            )

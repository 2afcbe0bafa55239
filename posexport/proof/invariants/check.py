"""Properties that must hold between two runs of the model, checked in addition to the values. Imports no torch.

They need no float64 reference, so they also catch errors that the reference shares with the graph. Changes are relative
to the scale of the outputs, and judged as errors of values are: up to 8 times what PyTorch changes for the same pair of
inputs in the same precision. Beyond the tolerance of the values at that length PyTorch's change is no rounding, and
allows nothing: the definition itself does not keep the promise.

The control: permuted tokens change the outputs where the model has positions, and only there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from posexport.base.sizes import samples
from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    FRAMES,
    HEIGHT,
    PATCHES,
    SEQUENCE,
    Axis,
    Padding,
    compared_outputs,
)
from posexport.base.targets.precisions import PRECISIONS
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.criterion import FACTOR, Array
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.invariants import changes, padded_rows
from posexport.proof.invariants.changes import CONTENT, Changes, Promise, all_tokens, compared, take
from posexport.proof.invariants.padded_rows import PaddedRows
from posexport.proof.proof import Outcome, Proof, Run
from posexport.proof.report.points import Invariant
from posexport.proof.report.points import Outcome as Verdict
from posexport.proof.report.report import Report
from posexport.proof.subjects.half import HALVES
from posexport.proof.subjects.runner import RunError, whole

if TYPE_CHECKING:
    from posexport.proof.references.definition import DefinitionReference

#: of the tolerance of values, `posexport.proof.criterion.FACTOR` times PyTorch's error: two runs with that error each
_TWO_ERRORS = 2 / FACTOR
#: also of a module that does not promise that padding changes nothing, unless its definition breaks it
PADDED_TEXTS = "texts padded by the bundle's tokenizer are as each alone"
#: also of a module whose rows depend on one another, unless they depend on their places
REORDERED = "reordering the batch reorders the outputs"
_NOTHING = "by definition it does not hold here, or only where no output can be compared"
#: the two runs of a promise compared
Comparison = Callable[[Promise], Changes]


def judged(promise: Promise, name: str, length: int, test: Comparison, tolerances: Mapping[str, float]) -> Invariant:
    """The output with the largest share of its tolerance decides.

    The definition itself runs only where an output changes by more than is allowed whatever the definition does.
    """
    try:
        measured = [(spec.name, error) for spec, error in test(promise)]
    except RunError as failure:
        return unmeasured(name, length, "fail", str(failure))
    if not measured:
        return unmeasured(name, length, "skipped", _NOTHING)
    least = {output: tolerances[output] * _TWO_ERRORS for output, _ in measured}
    output, worst = max(measured, key=lambda pair: _ratio(pair[1].error, least[pair[0]]))
    if worst.error <= least[output]:
        return Invariant(
            name=name, length=length, output=output, error=worst.error, tolerance=least[output], verdict="pass"
        )
    changes = {spec.name: change.error for spec, change in test(replace(promise, run=promise.definition))}
    broken_by_definition = {
        CONTENT: True,
        PADDED_TEXTS: not promise.promises.padding_invariant,
        REORDERED: not promise.promises.batch_invariant,
    }
    if broken_by_definition.get(name):
        measured = [(output, error) for output, error in measured if changes[output] <= tolerances[output]]
    if promise.judge.precision in HALVES:  # where PyTorch overflows in it, there is nothing to compare
        measured = [(output, error) for output, error in measured if np.isfinite(changes[output])]
    if not measured:
        return unmeasured(name, length, "skipped", _NOTHING)
    # `min` in this order: a change that is not a number excuses nothing
    limits = {
        output: max(
            promise.judge.tolerance(length, output, min(tolerances[output], changes[output])),
            least[output],
        )
        for output, _ in measured
    }
    output, worst = max(measured, key=lambda pair: _ratio(pair[1].error, limits[pair[0]]))
    limit, change = limits[output], changes[output]
    good = worst.error <= limit
    note = worst.note or ("" if good else f"{output} changes by {worst.error:.1e} of its scale, {limit:.1e} is allowed")
    if not good and change > tolerances[output]:
        note += f"; PyTorch's changes by {change:.1e}: the definition itself does not keep it"
    return Invariant(
        name=name,
        length=length,
        output=output,
        error=worst.error if np.isfinite(worst.error) else None,
        baseline_change=change if np.isfinite(change) else None,
        tolerance=limit,
        verdict="pass" if good else "fail",
        note=note,
    )


def _ratio(error: float, limit: float) -> float:
    """In units of the limit, which is zero where two runs must agree in every bit."""
    return error / limit if limit else float("inf") if error else 0.0


def unmeasured(name: str, length: int, verdict: Verdict, note: str) -> Invariant:
    return Invariant(name=name, length=length, output="", error=None, tolerance=None, verdict=verdict, note=note)


#: tokens must be permuted for the control of positions: below this there is too little to permute
_ENOUGH = 4
#: without positions the outputs of a float64 definition change by less than this share of float32's tolerance
_NO_ORDER = 1e-3


def order_of_tokens(promise: Promise, point: GridPoint, length: int, tolerances: Mapping[str, float]) -> Invariant:
    """The control: permuted tokens give other outputs, unless there is no position encoding.

    The first token stays where it is, for outputs that are read there.
    """
    few = point.tokens < _ENOUGH if point.image is None else point.image[0] < 2 * promise.limits.patch_size
    positional = promise.promises.positional
    depends, follows = "outputs depend on the order of tokens", "outputs follow the order of tokens"
    if positional and not few:
        invariant = _order_matters(promise, depends, length, point, tolerances)
        # the definition decides, which costs more, where the graph does not show it
        if invariant.verdict == "pass" or promise.exact is None:
            return invariant
    if promise.exact is not None and not few:
        tried = _tried(promise, promise.exact, point, tolerances)
        if not promise.wide:
            positional = tried
        elif positional is not False:  # its tolerance is too wide to say that there are none
            positional = tried or None
    name = depends if positional else follows
    if positional is False and promise.exact is not None:
        name += ", as the module's do: it has no positions"
    if positional is None or few:
        note = "too few tokens to permute" if few else "it is not known whether the model has positions"
        if promise.exact is not None and not few:
            note = "in the module itself their order changes the outputs by less than the tolerance"
        return unmeasured(name, length, "skipped", note)
    if positional:
        return _order_matters(promise, name, length, point, tolerances)
    return judged(promise, name, length, lambda p: _permuted(p, point), tolerances)


def _order_matters(
    promise: Promise, name: str, length: int, point: GridPoint, tolerances: Mapping[str, float]
) -> Invariant:
    """A difference counts from where values would be wrong, not from what PyTorch changes: that is the positions."""
    try:
        measured = [(spec.name, change.error) for spec, change in _permuted(promise, point)]
    except RunError as failure:
        return unmeasured(name, length, "fail", str(failure))
    finite = [(output, error) for output, error in measured if np.isfinite(error)]
    if not finite:
        return unmeasured(name, length, "skipped", "no output can be compared: none is finite")
    output, error = max(finite, key=lambda pair: _ratio(pair[1], tolerances[pair[0]]))
    present = error > tolerances[output]
    return Invariant(
        name=name,
        length=length,
        output=output,
        error=error,
        tolerance=tolerances[output],
        verdict="pass" if present else "fail",
        note="" if present else "permuted tokens give the same outputs: the positions are not in the graph",
    )


def _tried(promise: Promise, exact: Run, point: GridPoint, tolerances: Mapping[str, float]) -> bool | None:
    """Whether the definition's outputs depend on the order of tokens; None: by less than can be seen in float32."""
    compared = _permuted(replace(promise, run=exact), point)
    change = max((measured.error / tolerances[spec.name] for spec, measured in compared), default=0.0)
    return True if change > 1 else False if change < _NO_ORDER else None


def _permuted(promise: Promise, point: GridPoint) -> Changes:
    """Outputs for permuted tokens, against permuted outputs."""
    feeds = draw(point, promise.inputs)
    axis, order = _order(point, promise.limits.patch_size)
    permuted = {s.name: take(feeds[s.name], s.axes, axis, order) for s in promise.inputs}
    outputs = zip(promise.run(feeds), promise.outputs, strict=True)
    if point.image is None:
        expected = [take(y, s.axes, SEQUENCE, order) for y, s in outputs]
    else:
        expected = [_take_rows(y, s.axes, point.image, promise.limits.patch_size, order) for y, s in outputs]
    yield from compared(promise, promise.run(permuted), expected, all_tokens, by_token=False)


def _order(point: GridPoint, patch: int) -> tuple[str, list[int]]:
    """What to permute: the tokens but the first, or the rows of an image's patches."""
    rng = np.random.default_rng(point.length)
    if point.image is None:
        return SEQUENCE, [0, *(1 + rng.permutation(point.length - 1))]
    rows = point.image[0] // patch
    order = np.roll(np.arange(rows), 1)
    pixels = [row * patch + pixel for row in order for pixel in range(patch)]
    return HEIGHT, [*pixels, *range(rows * patch, point.image[0])]


def _take_rows(array: Array, axes: Sequence[Axis], image: tuple[int, int], patch: int, pixels: Sequence[int]) -> Array:
    """The rows of patches in the order of their pixels, after tokens without a place in the image."""
    rows, columns = (side // patch for side in image)
    if PATCHES not in axes:
        return array
    axis = list(axes).index(PATCHES)
    prefix = array.shape[axis] - rows * columns
    order = [pixels[row * patch] // patch for row in range(rows)]
    patches = [prefix + row * columns + column for row in order for column in range(columns)]
    return np.take(array, [*range(prefix), *patches], axis=axis)


#: invariants are looked at at the first length from here on, and where attention is tiled
_FROM = 17


@dataclass(frozen=True)
class Invariants:
    """The check; ``of_texts_alone``: of texts that the tokenizer pads, for which a reduced model lacks words."""

    reference: "DefinitionReference"
    of_texts_alone: bool = False

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with all invariants at two lengths."""
        source = self.reference.source
        wide = proof.judge.precision in HALVES or PRECISIONS[proof.about.precision].quantized
        # where the source cannot say whether it has positions, or the tolerance cannot show it, the definition in
        # float64 does
        repeated = source.by_trial or wide
        promise = Promise(
            run=whole(proof.subject, source),
            definition=self.reference.whole_baseline,
            inputs=source.inputs,
            outputs=compared_outputs(source),
            limits=source.limits,
            promises=source.promises,
            judge=proof.judge,
            exact=self.reference.whole_truth if repeated else None,
            wide=wide,
        )
        points = [p for p in proof.points if not (p.must_be_rejected or p.calls or p.cached or p.position_ids_given)]
        rows = max((point.batch for point in points), default=1)  # 1 where no input has a batch
        batched = {point.length: point for point in points if point.batch == rows and point not in outcome.skipped}
        invariants = list(report.invariants)
        lengths = [] if self.of_texts_alone else _spread(batched)
        for done, length in enumerate(lengths):
            proof.progress(done, len(lengths), f"invariants, length {length}")
            invariants += check(promise, batched[length], _at(length, proof, outcome))
        if (texts := padded_rows.of_texts(source)) is not None:
            nearest = min(batched, key=lambda length: abs(length - texts.length), default=texts.length)
            invariants.append(_padded_texts(promise, texts, _at(nearest, proof, outcome)))
        return msgspec.structs.replace(report, invariants=invariants)


def _padded_texts(promise: Promise, texts: PaddedRows, tolerances: Mapping[str, float]) -> Invariant:
    def changes(p: Promise) -> Changes:
        return texts.changes(p.run, p.inputs, p.outputs)

    return judged(promise, PADDED_TEXTS, texts.length, changes, tolerances)


def _at(length: int, proof: Proof, outcome: Outcome) -> dict[str, float]:
    """The tolerance of every output's values."""
    return {
        spec.name: outcome.tolerances.get((length, spec.name), proof.judge.tolerance(length, spec.name, 0.0))
        for spec in compared_outputs(proof.model)
    }


def _spread(points: Mapping[int, GridPoint]) -> list[int]:
    """A length with short attention, and the first one with tiled attention, or the longest."""
    lengths = sorted(points)
    middle = [length for length in lengths if length >= _FROM][:1]
    tiled = [length for length in lengths if points[length].tokens > BLOCK][:1]
    return sorted({*middle, *(tiled or lengths[-1:])})


def check(promise: Promise, base: GridPoint, tolerances: Mapping[str, float]) -> Iterator[Invariant]:
    """All invariants at the size of ``base``; ``tolerances``: of the values of each output at that length."""
    for name, test in comparisons(promise, base):
        yield judged(promise, name, base.length, test, tolerances)
    if base.image is not None or any(SEQUENCE in spec.axes for spec in promise.inputs):
        yield order_of_tokens(promise, _point(base), base.length, tolerances)


def comparisons(promise: Promise, base: GridPoint) -> list[tuple[str, Comparison]]:
    """Those that apply but the order of tokens: name, and the two runs."""
    length, memory = base.length, base.encoder_length
    ragged = (promise.limits.ragged if promise.masked else None) or "none"
    checks: list[tuple[str, Comparison]] = []
    # a text of an image is no row: without its neighbours it belongs to another image
    if base.batch > 1 and BATCH not in promise.limits.multiple_of:
        if promise.promises.batch_invariant:
            checks.append(("batch neighbours do not change a row", lambda p: changes.alone(p, _point(base, ragged))))
        checks.append((REORDERED, lambda p: changes.reordered(p, _point(base, ragged))))
    if promise.promises.causal and length > 1:
        checks.append(("later tokens change nothing", lambda p: changes.later(p, _point(base))))
    if SEQUENCE in promise.masked and length > samples(1, base.convolutions):
        if promise.promises.padding_invariant and "right" in promise.limits.paddings:
            checks.append(("right padding changes nothing", lambda p: changes.padded(p, _point(base), left=False)))
        # both sequences must move together, or their distances change
        movable = promise.promises.shift_invariant and "left" in promise.limits.paddings
        if movable and (memory is None or ENCODER_SEQUENCE in promise.masked):
            checks.append(("left padding changes nothing", lambda p: changes.padded(p, _point(base), left=True)))
        # a left-padded row is answered at a padded token by whoever reads the first one
        side: Padding = "right" if promise.promises.reads_first_token else ragged
        frames = any(FRAMES in spec.axes for spec in promise.outputs) and not base.convolutions
        if side != "none" and not frames:  # which frames of a user's module are padding is not known
            checks.append((CONTENT, lambda p: changes.content(p, _point(base, side))))
    return checks


def _point(base: GridPoint, padding: Padding = "none") -> GridPoint:
    return msgspec.structs.replace(base, batch=3, padding=padding)

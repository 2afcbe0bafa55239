"""Properties that must hold between two runs of the model, checked beside the values. Imports no torch.

They need no float64 reference, so they also catch what the reference shares with the graph. Changes are relative to
the scale of the outputs. They are allowed as errors of values are: up to 8 times what PyTorch changes for the same pair
of inputs in the same precision. That counts up to the tolerance of the values at that length: beyond it is no rounding,
and the definition itself does not keep the promise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from posexport.parity.calls import whole
from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants import changes
from posexport.parity.invariants.judge import Comparison, judged
from posexport.parity.invariants.order import order_of_tokens
from posexport.parity.invariants.promise import CONTENT, Promise
from posexport.parity.proof import Outcome, Proof
from posexport.parity.report.points import Invariant
from posexport.parity.report.report import Report
from posexport.parity.subjects.half import HALVES
from posexport.sizes import samples
from posexport.spec import ENCODER_SEQUENCE, FRAMES, SEQUENCE, Padding
from posexport.targets.precisions import PRECISIONS

if TYPE_CHECKING:
    from posexport.parity.references.definition import DefinitionReference

#: invariants are looked at at the first length from here on, and at the longest
_FROM = 17


@dataclass(frozen=True)
class Invariants:
    """The check."""

    reference: "DefinitionReference"

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with all invariants at two lengths."""
        source = self.reference.source
        wide = proof.judge.precision in HALVES or PRECISIONS[proof.about.precision].quantized
        # where the source cannot say whether it has positions, or the tolerance cannot show it, the definition in
        # float64 does
        asked = source.by_trial or wide
        promise = Promise(
            run=whole(proof.subject, source),
            definition=self.reference.whole_baseline,
            inputs=source.inputs,
            outputs=source.outputs,
            limits=source.limits,
            promises=source.promises,
            judge=proof.judge,
            exact=self.reference.whole_truth if asked else None,
            wide=wide,
        )
        points = [p for p in proof.points if not (p.must_be_rejected or p.calls or p.position_ids_given)]
        rows = max((point.batch for point in points), default=1)  # 1 where no input has a batch
        batched = {point.length: point for point in points if point.batch == rows and point not in outcome.skipped}
        invariants = list(report.invariants)
        lengths = _spread(sorted(batched))
        for done, length in enumerate(lengths):
            proof.progress(done, len(lengths), f"invariants, length {length}")
            invariants += check(promise, batched[length], _at(length, proof, outcome))
        return msgspec.structs.replace(report, invariants=invariants)


def _at(length: int, proof: Proof, outcome: Outcome) -> dict[str, float]:
    """The tolerance of every output's values."""
    return {
        spec.name: outcome.tolerances.get((length, spec.name), proof.judge.tolerance(length, spec.name, 0.0))
        for spec in proof.model.outputs
    }


def _spread(lengths: Sequence[int]) -> list[int]:
    middle = [length for length in lengths if length >= _FROM][:1]
    return sorted({*middle, *lengths[-1:]})


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
    if base.batch > 1:
        checks += [
            ("batch neighbours do not change a row", lambda p: changes.alone(p, _point(base, ragged))),
            ("reordering the batch reorders the outputs", lambda p: changes.reordered(p, _point(base, ragged))),
        ]
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

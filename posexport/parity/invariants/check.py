"""Properties that must hold between two runs of the model, checked beside the values. Imports no torch.

They need no float64 reference, so they also catch what the reference shares with the graph. Changes are relative to
the scale of the outputs. They are allowed as errors of values are: up to 8 times what PyTorch changes for the same pair
of inputs in the same precision. That counts up to the tolerance of the values at that length: beyond it is no rounding,
and the definition itself does not keep the promise.
"""

from collections.abc import Iterator, Mapping

import msgspec

from posexport.parity.grid.point import GridPoint
from posexport.parity.invariants import changes
from posexport.parity.invariants.judge import Comparison, judged
from posexport.parity.invariants.order import order_of_tokens
from posexport.parity.invariants.promise import CONTENT, Promise
from posexport.parity.report.points import Invariant
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE, Padding, samples

#: what is about the rows of a batch
OF_BATCH = ("batch neighbours do not change a row", "reordering the batch reorders the outputs")


def check(promise: Promise, base: GridPoint, tolerances: Mapping[str, float]) -> Iterator[Invariant]:
    """All invariants at the size of ``base``; ``tolerances``: of the values of each output at that length."""
    for name, test in comparisons(promise, base):
        yield judged(promise, name, base.length, test, tolerances)
    yield order_of_tokens(promise, _point(base), base.length, tolerances)


def comparisons(promise: Promise, base: GridPoint) -> list[tuple[str, Comparison]]:
    """Those that apply but the order of tokens: name, and the two runs."""
    length, memory = base.length, base.memory
    ragged = (promise.envelope.ragged if promise.masked else None) or "none"
    alone, reordered = OF_BATCH
    checks: list[tuple[str, Comparison]] = [
        (alone, lambda p: changes.alone(p, _point(base, ragged))),
        (reordered, lambda p: changes.reordered(p, _point(base, ragged))),
    ]
    if promise.promises.causal and length > 1:
        checks.append(("later tokens change nothing", lambda p: changes.later(p, _point(base))))
    if SEQUENCE in promise.masked and length > samples(1, base.convolutions):
        if promise.promises.padding_invariant and "right" in promise.envelope.paddings:
            checks.append(("right padding changes nothing", lambda p: changes.padded(p, _point(base), left=False)))
        # both sequences must move together, or their distances change
        movable = promise.promises.shift_invariant and "left" in promise.envelope.paddings
        if movable and (memory is None or ENCODER_SEQUENCE in promise.masked):
            checks.append(("left padding changes nothing", lambda p: changes.padded(p, _point(base), left=True)))
        # a left-padded row is answered at a padded token by whoever reads the first one
        side: Padding = "right" if promise.promises.reads_first_token else ragged
        if side != "none":
            checks.append((CONTENT, lambda p: changes.content(p, _point(base, side))))
    return checks


def _point(base: GridPoint, padding: Padding = "none") -> GridPoint:
    return msgspec.structs.replace(base, batch=3, padding=padding)

"""The criterion applied to two runs. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from posexport.parity.criterion import FACTOR
from posexport.parity.invariants.promise import CONTENT, Changes, Promise
from posexport.parity.report.points import Invariant, Outcome
from posexport.parity.subjects.half import HALVES
from posexport.parity.subjects.runner import RunError

#: of the tolerance of values, `posexport.parity.criterion.FACTOR` times PyTorch's error: two runs with that error each
_TWO_ERRORS = 2 / FACTOR
#: the two runs of a promise compared
Comparison = Callable[[Promise], Changes]


def judged(promise: Promise, name: str, length: int, test: Comparison, tolerances: Mapping[str, float]) -> Invariant:
    """The output that comes nearest to what is allowed decides."""
    changes = {spec.name: change.error for spec, change in test(replace(promise, run=promise.definition))}
    try:
        measured = [(spec.name, error) for spec, error in test(promise)]
    except RunError as failure:
        return unmeasured(name, length, "fail", str(failure))
    if name == CONTENT:
        measured = [(output, error) for output, error in measured if changes[output] <= tolerances[output]]
    if promise.judge.precision in HALVES:  # where PyTorch overflows in it, there is nothing to compare
        measured = [(output, error) for output, error in measured if np.isfinite(changes[output])]
    if not measured:
        return unmeasured(
            name, length, "skipped", "by definition it does not hold here, or only where no output can be compared"
        )
    # `min` in this order: a change that is not a number excuses nothing
    limits = {
        output: max(
            promise.judge.tolerance(length, output, min(tolerances[output], changes[output])),
            tolerances[output] * _TWO_ERRORS,
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


def unmeasured(name: str, length: int, verdict: Outcome, note: str) -> Invariant:
    return Invariant(name=name, length=length, output="", error=None, tolerance=None, verdict=verdict, note=note)

"""Values, rejections and points that were skipped, as records of the report. Imports no torch."""

import math

from posexport.parity.grid.point import GridPoint
from posexport.parity.proof import Outcome, Proof, Value
from posexport.parity.report.points import Point
from posexport.parity.subjects.half import HALVES

#: what has the range of float32
_OTHER = {"fp16": " or bf16"}


def judged(proof: Proof, outcome: Outcome, value: Value) -> Point:
    """One output at one point against the tolerance at that length."""
    output, baseline = value.truth.output, value.truth.baseline.error
    key = value.point.length, output
    tolerance, worst = outcome.tolerances[key], outcome.largest[key]
    error = None if value.measured is None or not math.isfinite(value.measured.error) else value.measured.error
    precision = proof.judge.precision
    overflows = precision in HALVES and math.isinf(baseline) and value.measured is not None
    if overflows and (error is None or error > tolerance):
        # nothing to measure by: a graph that overflows where the definition does is not to blame
        note = f"{output}: PyTorch's own {precision} overflows; use fp32{_OTHER.get(precision, '')}"
        return proof.at(value.point, output=output, verdict="skipped", note=note)
    return proof.at(
        value.point,
        output=output,
        error=error,
        baseline_error=baseline if math.isfinite(baseline) else None,
        worst_baseline_error=worst if math.isfinite(worst) else None,
        tolerance=tolerance,
        verdict="pass" if error is not None and error <= tolerance else "fail",
        note=value.note,
    )


def skipped(proof: Proof, point: GridPoint, reason: str) -> Point:
    """A point for which there was no memory."""
    return proof.at(point, verdict="skipped", note=reason)


def rejected(proof: Proof, point: GridPoint) -> Point:
    """A point outside the limits, which the graph has to reject; one of another tool may answer as the source does."""
    answer = proof.rejection.judge(proof.subject, point)
    verdict = "fail" if not answer.good else "pass" if answer.answered else "rejected"
    return proof.at(point, verdict=verdict, note=answer.note)

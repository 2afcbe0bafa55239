"""The engine: every point through the reference and the subject, the judge's verdict, the checks. Imports no torch."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from posexport.parity.calls import in_calls
from posexport.parity.grid.point import GridPoint
from posexport.parity.judges.verdicts import judged, rejected, skipped
from posexport.parity.proof import Case, Outcome, Proof, Value
from posexport.parity.report.points import Point
from posexport.parity.report.report import Report
from posexport.parity.subjects.runner import RunError


def prove(proof: Proof) -> Report:
    """Run a proof, and report on it."""
    outcome = measure(proof)
    if outcome.stateful:
        proof.reference.renew()
        outcome = replace(measure(proof), stateful=True)
    points = judgements(proof, outcome)
    report = msgspec.structs.replace(
        proof.about, points=points, medians=proof.judge.medians(points), stateful=outcome.stateful
    )
    for check in proof.checks:
        report = check(proof, outcome, report)
    return report


def measure(proof: Proof) -> Outcome:
    """The values of all points that memory has room for."""
    accepted = [point for point in proof.points if not point.must_be_rejected]
    left_out = proof.budget.too_large(accepted)
    fitting = [point for point in accepted if point not in left_out]
    proof.reference.start(fitting, left_out)
    values: list[Value] = []
    for done, point in enumerate(fitting):
        proof.progress(done, len(fitting), f"proving, {point}")
        values += _compared(proof, point, proof.reference.case(point))
    largest = proof.reference.largest(values, proof.progress)
    tolerances = {key: proof.judge.tolerance(*key, baseline) for key, baseline in largest.items()}
    return Outcome(values, largest, tolerances, left_out, proof.reference.changed())


def judgements(proof: Proof, outcome: Outcome) -> list[Point]:
    """A record for every value, rejection and point without the memory, by length."""
    points = [judged(proof, outcome, value) for value in outcome.values]
    points += [rejected(proof, point) for point in proof.points if point.must_be_rejected]
    points += [skipped(proof, point, reason) for point, reason in outcome.skipped.items()]
    return sorted(points, key=lambda p: (p.length, p.batch, p.encoder_length or 0))


def _compared(proof: Proof, point: GridPoint, case: Case) -> Iterator[Value]:
    """The subject's outputs against what is right."""
    try:
        outputs = in_calls(proof.subject, case.feeds, proof.model, point.calls)
    except RunError as err:
        yield from (Value(point, truth, None, f"ONNX Runtime failed: {err}") for truth in case.truths)
        return
    for truth, y in zip(case.truths, outputs, strict=True):
        measured = truth.measure(y)
        yield Value(point, truth, measured, measured.note or truth.baseline.note)

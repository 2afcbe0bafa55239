"""The engine: every point through the reference and the subject, the judge's verdict, the checks. Imports no torch."""

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from posexport.proof.criterion import ALL_ZERO, Array, Measured
from posexport.proof.grid.point import GridPoint
from posexport.proof.percent import cost
from posexport.proof.proof import Case, Outcome, Proof, Value
from posexport.proof.report.points import NOT_RUN, Point
from posexport.proof.report.report import Report
from posexport.proof.subjects.half import HALVES
from posexport.proof.subjects.runner import RunError, in_calls

#: what has the range of float32
_OTHER = {"fp16": " or bf16"}


def judged(proof: Proof, outcome: Outcome, value: Value) -> Point:
    """One output at one point against the tolerance at that length."""
    output, baseline = value.output, value.baseline
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
    # points that differ in their calls alone follow one another: they have one truth
    groups: dict[GridPoint, list[GridPoint]] = {}
    for point in fitting:
        groups.setdefault(msgspec.structs.replace(point, calls=()), []).append(point)
    done, total = 0.0, sum(map(cost, fitting))
    for group in groups.values():
        proof.release()
        for point in group:
            proof.progress(int(done), int(total), f"proving, {point}")
            done += cost(point)
            values += _compared(proof, point, proof.reference.case(point))
    values = _with_zeros_alone_failing(values)
    outcome = Outcome(values, {}, {}, left_out, proof.reference.changed())
    for thorough in (False, True):
        # what is right with the errors of few draws is right with those of many, which only allow more
        largest = proof.reference.largest(values, proof.progress, thorough=thorough)
        tolerances = {key: proof.judge.tolerance(*key, baseline) for key, baseline in largest.items()}
        outcome = replace(outcome, largest=largest, tolerances=tolerances)
        points = [judged(proof, outcome, value) for value in values]
        verdicts = {point.verdict for point in points} | {median.verdict for median in proof.judge.medians(points)}
        if "fail" not in verdicts:
            break
    return outcome


def judgements(proof: Proof, outcome: Outcome) -> list[Point]:
    """A record for every value, rejection and point without the memory, by length."""
    points = [judged(proof, outcome, value) for value in outcome.values]
    points += [rejected(proof, point) for point in proof.points if point.must_be_rejected]
    points += [skipped(proof, point, reason) for point, reason in outcome.skipped.items()]
    return sorted(points, key=lambda p: (p.length, p.batch, p.encoder_length or 0))


def _with_zeros_alone_failing(values: list[Value]) -> list[Value]:
    """``values``, which fail where all are zero: equal zeros at a point count beside other numbers elsewhere."""
    if any(value.measured is None or value.measured.scale for value in values):
        return values
    return [replace(value, measured=Measured(math.inf, 0.0, ALL_ZERO), note=value.note or ALL_ZERO) for value in values]


def _compared(proof: Proof, point: GridPoint, case: Case) -> Iterator[Value]:
    """The subject's outputs against the reference's."""
    outputs: list[Array] = []
    failed = ""
    try:
        outputs = in_calls(proof.subject, case.feeds, proof.model, point.calls)
    except RunError as err:
        failed = f"{NOT_RUN}{err}"
    for index, truth in enumerate(case.truths):
        measured = None if failed else truth.measure(outputs[index])
        note = failed or (measured or truth.baseline).note or truth.baseline.note
        yield Value(point, truth.output, truth.baseline.error, measured, note)

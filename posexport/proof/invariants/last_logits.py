"""The logits of the last tokens alone equal the last ones of a call that computes all."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from posexport.base.spec import LOGITS, NUM_LOGITS, SEQUENCE
from posexport.proof.criterion import measure
from posexport.proof.grid.inputs import draw, keep_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Outcome, Proof
from posexport.proof.report.points import Invariant
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, Runner

#: numbers of logits to compute; the last one exceeds the tokens of a point
NUMBERS = (1, 3, 1 << 20)


@dataclass(frozen=True)
class LastLogitsHold:
    """The check, for a graph with the input `NUM_LOGITS`."""

    subject: Runner

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with an invariant for each of `NUMBERS`."""
        proof.progress(0, 0, "the last tokens' logits alone")
        point = _point(proof, outcome)
        invariants = [] if point is None else list(self._invariants(proof, outcome, point))
        return msgspec.structs.replace(report, invariants=[*report.invariants, *invariants])

    def _invariants(self, proof: Proof, outcome: Outcome, point: GridPoint) -> Iterator[Invariant]:
        feeds = draw(point, proof.model.inputs)
        axes = next(spec.axes for spec in proof.model.outputs if spec.name == LOGITS)
        index = self.subject.outputs.index(LOGITS)
        limit = max(limit for (_, output), limit in outcome.tolerances.items() if output == LOGITS)
        for number in NUMBERS:
            name = f"num_logits_to_keep={number}: the last logits of all"
            try:
                all_BTV = self.subject(feeds)[index]
                last_BNV = self.subject({**feeds, NUM_LOGITS: np.array(number)})[index]
            except RunError as failure:
                yield _judged(name, point, None, limit, f"ONNX Runtime failed: {failure}")
                continue
            last = slice(max(0, point.length - number), None)
            error = measure(last_BNV, all_BTV[:, last], axes, keep_mask(point)[:, last])
            yield _judged(name, point, error.error, limit, error.note)


def _point(proof: Proof, outcome: Outcome) -> GridPoint | None:
    """A short point of several tokens that was proven, of several rows that end with tokens where there is one."""
    has_tokens = any(spec.role == "tokens" and SEQUENCE in spec.axes for spec in proof.model.inputs)
    proven = dict.fromkeys(value.point for value in outcome.values if value.output == LOGITS)
    points = [
        point for point in proven if point.padding in ("none", "left") and not (point.calls or point.position_ids_given)
    ]
    if not points or not has_tokens:
        return None
    return min(points, key=lambda point: (point.length <= NUMBERS[1], point.batch == 1, point.padding, point.length))


def _judged(name: str, point: GridPoint, error: float | None, limit: float, note: str) -> Invariant:
    good = error is not None and error <= limit
    return Invariant(
        name=name,
        length=point.length,
        output=LOGITS,
        error=error if error is not None and np.isfinite(error) else None,
        tolerance=limit,
        verdict="pass" if good else "fail",
        note=note or ("" if good else f"error {error:.1e} exceeds {limit:.1e}"),
    )

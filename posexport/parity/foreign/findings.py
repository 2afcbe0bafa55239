"""What is said of another tool's graph beside its table: answers where a rejection was due. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from posexport.parity.proof import Outcome, Proof
from posexport.parity.report.points import Point
from posexport.parity.report.report import Report


@dataclass(frozen=True)
class Findings:
    """The check; ``limit``: of the source, in tokens."""

    limit: int | None

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with its findings, and with what was shown where there are none."""
        del proof, outcome
        shown = conclusion(report.points, self.limit, chosen=bool(report.lengths))
        return msgspec.structs.replace(report, findings=findings(report.points), conclusion=shown)


def findings(points: Sequence[Point]) -> list[str]:
    """A line for each kind of answer that should have been a refusal, with all its lengths."""
    lengths: dict[str, list[str]] = {}
    for point in points:
        if point.verdict == "fail" and not point.output:
            lengths.setdefault(point.note, []).append(point.point.size)
    return [f"at length {', '.join(dict.fromkeys(sizes))}: {note}" for note, sizes in lengths.items()]


def conclusion(points: Sequence[Point], limit: int | None, *, chosen: bool) -> str | None:
    """What was shown, in words, where inputs beyond the limit were tried and refused; None where something failed.

    ``chosen``: the user said at which lengths.
    """
    refused = [p for p in points if p.verdict == "rejected" and limit is not None and p.length > limit]
    right = [p for p in points if p.verdict == "pass"]
    if not (refused and right) or any(point.verdict == "fail" for point in points):
        return None
    words = dict.fromkeys(point.note.removeprefix("rejected: ") for point in refused)
    sizes = list(dict.fromkeys(point.point.size for point in right))
    where = f"length {', '.join(sizes)}" if chosen else f"every length up to {limit}"
    return f"values right at {where}; rejects longer inputs: {next(iter(words))}"

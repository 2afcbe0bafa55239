"""The check of the range of float16: how near values come to its end, and that none goes beyond."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import msgspec

from posexport.parity.agreement.on_grid import few
from posexport.parity.calls import in_calls
from posexport.parity.grid.inputs import draw
from posexport.parity.proof import Outcome, Proof, Subject
from posexport.parity.range.log import RangeLog
from posexport.parity.report.report import Report
from posexport.parity.subjects.runner import RunError


@dataclass(frozen=True)
class Range:
    """The check of what ``log`` remembers.

    ``copy``: opens what runs some points first, where the subject of the proof does not fill ``log``.
    """

    log: RangeLog
    copy: Callable[[], AbstractContextManager[Subject]] | None = None

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with the largest magnitudes by layer and all overflows."""
        if self.copy is not None:
            with self.copy() as subject:
                for point in few([p for p in proof.points if p not in outcome.skipped]):
                    # where it fails the proof's own subject fails too, and says so
                    with suppress(RunError):
                        in_calls(subject, draw(point, proof.model.inputs), proof.model, point.calls)
        return msgspec.structs.replace(report, range=self.log.layers(), overflows=self.log.overflows())

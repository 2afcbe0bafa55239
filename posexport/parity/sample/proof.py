"""The proof by a stored sample, and the check that a graph itself agrees where a copy of it was proven.

Imports no torch.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from posexport.bounds import Bound
from posexport.parity.criterion import Array
from posexport.parity.engine import judgements, measure
from posexport.parity.grid.memory import Budget
from posexport.parity.judges.guard import Guarded
from posexport.parity.judges.judges import StoredTolerances, UserTolerance
from posexport.parity.proof import Outcome, Proof, Subject
from posexport.parity.report.report import Report
from posexport.parity.sample.header import Header
from posexport.parity.sample.reference import StoredReference
from posexport.parity.sample.writer import SampleWriter
from posexport.spec import SEQUENCE
from posexport.targets.precisions import PRECISIONS


def sample_proof(
    header: Header,
    tensors: Mapping[str, Array],
    subject: Subject,
    *,
    provider: str,
    tolerance: float | None = None,
    emulated: bool = False,
) -> Proof:
    """The proof of ``subject`` at the points of a sample; ``tolerance``: the user's, instead of the stored ones."""
    reference = StoredReference(header, tensors)
    computed = PRECISIONS[header.precision].computed
    return Proof(
        model=header,
        subject=subject,
        reference=reference,
        judge=StoredTolerances(computed, reference.tolerances)
        if tolerance is None
        else UserTolerance(computed, tolerance),
        rejection=Guarded(header, [Bound(SEQUENCE, header.limit or 0)]),
        points=[*header.points, *header.refusals],
        # they were run before, and are small
        budget=Budget(outputs=header.outputs, limit=sys.maxsize),
        about=Report(
            scope="sample",
            provider=provider,
            precision=header.precision,
            points=[],
            tolerance=tolerance,
            emulated=emulated,
        ),
    )


@dataclass(frozen=True)
class Settled:
    """The check that gives the sample the tolerances of the finished report."""

    sample: SampleWriter

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` unchanged."""
        del proof, outcome
        self.sample.finish(report)
        return report


@dataclass(frozen=True)
class Shipped:
    """The check of the graph that ships, where an emulated copy was proven: at the points of the sample.

    A provider that computes in float32 what it has no half kernel for must be as exact as the emulated copy.
    ``subject`` opens the graph.
    """

    sample: SampleWriter
    subject: Callable[[], Subject]

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` with the results of the graph itself."""
        del proof, outcome
        header = self.sample.header
        if header is None or not header.points:
            return report
        stored = sample_proof(header, self.sample.tensors, self.subject(), provider=report.provider)
        return msgspec.structs.replace(report, shipped=judgements(stored, measure(stored)))

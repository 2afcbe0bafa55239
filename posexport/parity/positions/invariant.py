"""The line of a report about positions in a graph of half precision."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posexport.parity.proof import Outcome, Proof
from posexport.parity.report.points import Invariant
from posexport.parity.report.report import Report
from posexport.sources.source import Source
from posexport.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "what positions alone lead to is rounded to 16 bits once, when it meets an activation"
#: places that a note names
_NAMED = 3


@dataclass(frozen=True)
class Positions:
    """The check of ``model``, a graph of posexport's own in half precision: the graph itself shows it.

    Of a source of parts ``model`` is the directory of their files.
    """

    source: Source
    model: Path | bytes

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with one invariant more."""
        del proof, outcome
        return _with_positions(report, self.source, self.model)


def _with_positions(report: Report, source: Source, model: Path | bytes) -> Report:
    from posexport.parity.positions.trace import roundings

    graphs: Mapping[Path | bytes, Sequence[InputSpec]] = {model: source.inputs}
    if source.parts and isinstance(model, Path):
        graphs = {model / part.spec.file: part.spec.inputs for part in source.parts}
    places = [place for graph, inputs in graphs.items() for place in roundings(graph, inputs)]
    more = f", and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    invariant = Invariant(
        name=NAME,
        length=max((point.length for point in report.points if point.verdict == "pass"), default=0),
        output="",
        error=None,
        tolerance=None,
        verdict="fail" if places else "pass",
        note="; ".join(places[:_NAMED]) + more,
    )
    return msgspec.structs.replace(report, invariants=[*report.invariants, invariant])

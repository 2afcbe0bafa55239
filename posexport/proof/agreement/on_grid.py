"""The check that reports what quantizing costs: the graph against the float32 definition, at a few points.

A figure, not a verdict: the proof itself compares with the weights that are in the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from posexport.base.spec import compared_outputs
from posexport.proof.agreement.cosine import Cosines, cosines, total
from posexport.proof.grid.inputs import draw, token_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Outcome, Proof
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.report.report import CACHE, Report
from posexport.proof.subjects.runner import whole
from posexport.sources.source import Source

#: more tokens than these say nothing more
_LONGEST = 129


@dataclass(frozen=True)
class CostOnGrid:
    """``source``: the definition as it was before weights were quantized."""

    source: Source

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with mean and least cosine of every output; the tensors of a KV cache count as one."""
        source = self.source
        definition = whole(PrecisionCopy(source.module, torch.float32, outputs=len(source.outputs), share=True), source)
        subject = whole(proof.subject, source)
        by_output: dict[str, list[Cosines]] = {}
        points = few([p for p in proof.points if p not in outcome.skipped])
        for done, point in enumerate(points):
            proof.progress(done, len(points), f"cost of {report.precision}, {point}")
            feeds = draw(point, source.inputs)
            for spec, y, y32 in zip(compared_outputs(source), subject(feeds), definition(feeds), strict=True):
                name = CACHE if spec.name.startswith(CACHE[:-1]) else spec.name
                by_output.setdefault(name, []).append(cosines(y, y32, spec, token_mask(point, source.inputs, spec)))
        cost = {
            name: agreement for name, parts in by_output.items() if (agreement := total(parts).agreement) is not None
        }
        return msgspec.structs.replace(report, agreement=cost)


def few(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Of each length the largest batch in one call; the shortest one where all are long."""
    eligible = sorted((p for p in points if not (p.must_be_rejected or p.calls)), key=lambda p: (p.tokens, p.batch))
    chosen = {point.length: point for point in eligible if point.tokens <= _LONGEST}
    return list(chosen.values()) or eligible[:1]

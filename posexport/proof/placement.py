"""The check that every node ran on the requested provider. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from posexport.base.spec import PartSpec
from posexport.base.targets.providers import provider_named
from posexport.proof.grid.inputs import draw
from posexport.proof.proof import Outcome, Proof
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import Runner
from posexport.run.placement import placement, strays


@dataclass(frozen=True)
class Placement:
    """The check of ``model``, or of ``parts`` in that directory, which ``subject`` runs."""

    subject: Runner
    model: Path | bytes
    parts: tuple[PartSpec, ...] = ()

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with the nodes on other providers. One run of more than one token shows them all."""
        del outcome
        provider = provider_named(report.provider)
        point = next((p for p in proof.points if not p.must_be_rejected and p.length > 1), proof.points[0])
        feeds = self.subject.feeds(draw(point, proof.model.inputs))
        graphs: list[Path | bytes] = [self.model]
        if self.parts and isinstance(self.model, Path):
            graphs = [self.model / part.file for part in self.parts]
        runs = zip(graphs, self.subject.chain.feeds_per_graph(feeds), strict=True)
        placed = [node for graph, arrays in runs for node in placement(graph, arrays, provider.name)]
        misplaced = strays(placed, provider.ort_name, integers_on_host=provider.integers_on_host)
        wrong = [f"a node did not run on {provider.ort_name}: {stray}" for stray in misplaced]
        return msgspec.structs.replace(report, wrong_provider=wrong)

"""One count over all stages of a proof, in percent of its estimated cost. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Progress


def cost(point: GridPoint) -> float:
    """The cost of a point in tokens; attention costs as much as the projections at about 4,096 tokens."""
    keys = point.length if point.cached else point.tokens
    return point.batch * point.tokens * (1 + keys / 4096) + 16


def stages(points: Sequence[GridPoint]) -> dict[str, float]:
    """What the stages of a proof cost, by the first words of their steps."""
    accepted = [cost(point) for point in points if not point.must_be_rejected] or [0.0]
    # branches: the largest of each way; draws: 512 tokens a length; invariants: about twelve runs at two lengths
    return {
        "branches": 2 * max(accepted),
        "proving": sum(accepted),
        "PyTorch": 512.0 * len({point.length for point in points}),
        "invariants": 6 * max(accepted),
        "greedy": 1000.0,
        "cost of": 500.0,
    }


@dataclass(frozen=True)
class Percent:
    """Reports each stage's steps as a share of the whole; ``stages``: their costs, in the order in which they run.

    A stage is known by the first words of its steps; one that is not listed costs nothing.
    """

    progress: Progress
    stages: Mapping[str, float]

    def __call__(self, done: int, total: int, what: str) -> None:
        """Of ``total`` steps of a stage ``done`` are finished."""
        before = 0.0
        for name, share in self.stages.items():
            if what.startswith(name):
                finished = before + share * (done / total if total else 0.0)
                self.progress(round(100 * finished / sum(self.stages.values())), 100, what)
                return
            before += share
        self.progress(0, 0, what)


def part(progress: Progress, start: int, end: int) -> Progress:
    """Percents of a part of the whole, from ``start`` to ``end``."""

    def report(done: int, total: int, what: str) -> None:
        progress(start + (end - start) * done // total if total else start, 100, what)

    return report

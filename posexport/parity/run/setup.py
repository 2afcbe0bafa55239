"""What stays the same from point to point of a proof."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from posexport.parity.grid import memory
from posexport.parity.grid.point import GridPoint
from posexport.parity.run.reference import Reference
from posexport.parity.run.subject import Runner
from posexport.sources.source import Source
from posexport.targets.dtypes import BY_PRECISION
from posexport.targets.precisions import PrecisionName

#: done, of how many, what is being done
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The definition, the graph, and how they are compared.

    Attributes:
        heads: of attention, for the estimate of memory.
        memory_limit: bytes a point may need; None: most of what is free when it is asked.
        tolerance: the user's, in place of the criterion.
    """

    source: Source
    subject: Runner
    provider: str
    precision: PrecisionName
    progress: Progress
    heads: int = 16
    memory_limit: int | None = None
    tolerance: float | None = None

    def reference(self, dtype: torch.dtype | None = None, *, fresh: bool) -> Reference:
        """The definition in ``dtype``, by default in the model's precision."""
        source = self.source
        return Reference(
            source.module, dtype or BY_PRECISION[self.precision].torch, outputs=len(source.outputs), fresh=fresh
        )

    def references(self, *, fresh: bool) -> tuple[Reference, Reference]:
        """The definition in float64 and in the model's precision: truth and baseline."""
        return self.reference(torch.float64, fresh=fresh), self.reference(fresh=fresh)

    def room(self) -> int:
        """The bytes that a point may take."""
        return int(memory.available() * memory.SHARE) if self.memory_limit is None else self.memory_limit

    def needed(self, point: GridPoint) -> int:
        """A rough upper bound of the bytes that a point takes."""
        return memory.needed(point, self.source.outputs, self.heads)

    def too_large(self, points: Sequence[GridPoint], room: int) -> dict[GridPoint, str]:
        """The points for which there is no memory, with the reason."""
        needs = {point: self.needed(point) for point in points}
        return {
            point: f"needs about {memory.readable(need)} of memory, {memory.readable(room)} may be taken"
            for point, need in needs.items()
            if need > room
        }


def heads_of(module: nn.Module) -> int:
    """The most attention heads that any part of the module names, for the estimate of memory."""
    names = ("heads", "num_heads", "num_attention_heads", "n_heads")
    counts = (getattr(part, name, None) for part in module.modules() for name in names)
    return max((count for count in counts if isinstance(count, int)), default=Setup.heads)

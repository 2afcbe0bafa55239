"""What a graph is made for."""

from dataclasses import dataclass
from typing import Literal, get_args

from posexport.lowering.blocks import BLOCK

TargetName = Literal["portable", "cpu", "cuda"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
#: the domain of ONNX Runtime's own operators
MICROSOFT = "com.microsoft"
#: the first opset with Attention, RotaryEmbedding and RMSNormalization
ATTENTION_OPSET = 23


@dataclass(frozen=True)
class Target:
    """``portable``: any runtime of standard ONNX operators; ``cpu``, ``cuda``: ONNX Runtime's provider of that name.

    ``flat``: the graph is for runtimes that know neither functions nor Scan, such as OpenVINO. ``longest`` and
    ``shortest``: the most (None: any number) and the fewest queries of a row, so that no branch is written for others.
    """

    name: TargetName = "portable"
    opset: int = 18
    flat: bool = False
    #: most calls are of one new token, behind a cache
    steps: bool = False
    longest: int | None = None
    shortest: int = 1

    @property
    def microsoft(self) -> bool:
        """ONNX Runtime's own operators may stand in the graph."""
        return self.name != "portable"

    @property
    def tiles(self) -> bool:
        """Queries may be more than a tile holds: only then a graph has branches that cut them."""
        return self.longest is None or self.longest > BLOCK

    @property
    def always_tiles(self) -> bool:
        """Queries are always more than a tile holds."""
        return self.shortest > BLOCK

    def needs(self, opset: int, what: str) -> str | None:
        """Why an operator of a later opset cannot be used; None where it can."""
        return None if self.opset >= opset else f"{what} needs opset {opset}, the graph has {self.opset}"

    def needs_microsoft(self, what: str) -> str | None:
        """Why an operator of ONNX Runtime's cannot be used; None where it can."""
        return None if self.microsoft else f"{what} is ONNX Runtime's own operator; use --target cpu or cuda"

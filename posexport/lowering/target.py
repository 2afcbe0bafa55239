"""What a graph is made for."""

from dataclasses import dataclass
from typing import Literal, get_args

TargetName = Literal["portable", "cpu", "cuda"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
#: the domain of ONNX Runtime's own operators
MICROSOFT = "com.microsoft"
#: the first opset with Attention, RotaryEmbedding and RMSNormalization
ATTENTION_OPSET = 23


@dataclass(frozen=True)
class Target:
    """``portable``: any runtime of standard ONNX operators; ``cpu``, ``cuda``: ONNX Runtime's provider of that name.

    ``flat``: the graph is for runtimes that know neither functions nor Scan, such as OpenVINO.
    """

    name: TargetName = "portable"
    opset: int = 18
    flat: bool = False
    #: most calls are of one new token, behind a cache
    steps: bool = False

    @property
    def microsoft(self) -> bool:
        """ONNX Runtime's own operators may stand in the graph."""
        return self.name != "portable"

    def needs(self, opset: int, what: str) -> str | None:
        """Why an operator of a later opset cannot be used; None where it can."""
        return None if self.opset >= opset else f"{what} needs opset {opset}, the graph has {self.opset}"

    def needs_microsoft(self, what: str) -> str | None:
        """Why an operator of ONNX Runtime's cannot be used; None where it can."""
        return None if self.microsoft else f"{what} is ONNX Runtime's own operator; use --for cpu or cuda"

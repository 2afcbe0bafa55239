"""What a part of ``ci/gpu`` is: cases that run one by one, each in a process that is not the runner's."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: what a case gives: ``passed``, a ``note`` where it did not, and figures
Row = dict[str, Any]

_DRY = str(Path(__file__).parents[1] / "cuda_dry")
if _DRY not in sys.path:
    sys.path.append(_DRY)  # a dry run's cases are these parts' too


@dataclasses.dataclass(frozen=True)
class Setup:
    """Where a part runs: on a card, or in the rehearsal with few and little models on what is here.

    Attributes:
        provider: of ONNX Runtime.
        rehearsal: no card: figures mean nothing, and goals of speed are not judged.
    """

    provider: str = "cuda"
    rehearsal: bool = False

    @property
    def torch_device(self) -> str:
        """Where PyTorch computes."""
        return "cpu" if self.rehearsal else "cuda"

    def target(self, precision: str) -> str:
        """Of conversions; for a CPU, which computes nothing in bfloat16, portable then."""
        return "portable" if (self.provider, precision) == ("cpu", "bf16") else self.provider

    def few(self, cases: Sequence[str], *telling: str) -> list[str]:
        """All cases on a card, in the rehearsal those that are named."""
        return [case for case in cases if case in telling] if self.rehearsal else list(cases)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part.

    Attributes:
        name: what ``ci/gpu PART`` takes.
        what: what it shows, in a line.
        cases: their names, the most telling first.
        run: one case; what it raises fails the case.
        alone: cases are timed, so that nothing may run beside them.
        stubs: sessions only need to open: the rehearsal runs them on the dry run's stand-ins.
        rehearsed: only the rehearsal has it.
        limit: seconds of a case, after which its process is ended.
    """

    name: str
    what: str
    cases: Callable[[Setup], list[str]]
    run: Callable[[str, Setup], Row]
    alone: bool = False
    stubs: bool = False
    rehearsed: bool = False
    #: behind the 8 minutes after which no case begins, cases end within 10
    limit: int = 110

    def setup(self, rehearsal: bool) -> Setup:
        return Setup("cpu" if rehearsal and not self.stubs else "cuda", rehearsal)

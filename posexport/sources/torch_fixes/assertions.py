"""What an ``assert`` says of values is true in a trace, as ``assert lengths.max().item() <= length`` in XLM.

PyTorch's tracer refuses to decide it: it looks for an ``assert`` without a message, at the frame that asks, which is
not the module's where branches are recorded (`posexport.sources.torch_fixes.size_uses`). A graph does not raise; what
follows is computed as the module does.

Reason: GuardOnDataDependentSymNode. Seen in 2.13.
"""

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from posexport.sources.torch_fixes.patch import patched

_RAISES = "LOAD_ASSERTION_ERROR"
#: instructions from a comparison to the jump that it decides
_NEAR = 3


@contextmanager
def with_assertions_held() -> Iterator[None]:
    """Inside the block comparisons of numbers that depend on values are what an ``assert`` says."""
    to_bool: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__

    def hold(self: torch.SymBool) -> bool:
        if free_unbacked_symbols(self.node.expr):
            frame = sys._getframe(1)  # noqa: SLF001 (inspect.stack reads files)
            while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
                frame = frame.f_back
            if (way := _way_on(frame)) is not None:
                return way
        return to_bool(self)

    with patched(torch.SymBool, "__bool__", hold):
        yield


def _way_on(frame: FrameType) -> bool | None:
    """What a condition that a frame is at must be for an ``assert`` to raise nothing; None where there is none."""
    instructions = [step for step in dis.get_instructions(frame.f_code) if step.opname != "CACHE"]
    by_offset = {step.offset: step.opname for step in instructions}
    at = next((number for number, step in enumerate(instructions) if step.offset >= frame.f_lasti), len(instructions))
    for number in range(at, min(at + _NEAR, len(instructions) - 1)):
        jump = instructions[number]
        if "JUMP" in jump.opname:
            jumps_if = jump.opname.endswith("TRUE")
            if instructions[number + 1].opname == _RAISES:
                return jumps_if
            return not jumps_if if by_offset.get(jump.argval) == _RAISES else None
    return None

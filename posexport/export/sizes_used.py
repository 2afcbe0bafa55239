"""Where a user's module makes a constant of a size, or decides by one, while it is traced.

PyTorch goes on without a word in both cases: the axis is then fixed, or the graph has one of the two branches.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_false, statically_known_true

from posexport.modules.user_module import is_user_s, line_of


@dataclass
class SizesUsed:
    """What became of sizes, with the user's lines.

    ``fixed``: those that became numbers. ``read``: lines with ``int()``. ``decided``: lines that chose by a size, with
    the choice.
    """

    fixed: list[tuple[int, str]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    decided: dict[str, bool] = field(default_factory=dict)

    def line_that_fixed(self, size: int) -> str:
        """The user's first line that made a constant of a ``size``, or of any; nothing where there is none."""
        lines = [line for fixed, line in self.fixed if fixed == size and line] or self.read
        return lines[0] if lines else ""


@contextmanager
def sizes_used() -> Iterator[SizesUsed]:
    """Record, inside the block, what the code below its frame does with the sizes of a trace."""
    # what called the tracer is not the module, even where it is the user's script
    found, outside = SizesUsed(), sys._getframe(2)  # noqa: SLF001 (the generator's, contextlib's, the block's)
    # no public hook says this; the methods are the ones that PyTorch's own logs of it come from
    decide: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__
    fix = ShapeEnv._set_replacement  # noqa: SLF001
    to_int: Callable[[torch.SymInt], int] = torch.SymInt.__int__

    def decided(self: torch.SymBool) -> bool:
        caller = sys._getframe(1)  # noqa: SLF001 (inspect.stack reads files)
        settled = statically_known_true(self) or statically_known_false(self)
        if settled or not is_user_s(caller.f_code.co_filename):
            return decide(self)
        answer = decide(self)
        found.decided.setdefault(line_of(caller.f_code.co_filename, caller.f_lineno), answer)
        return answer

    def read(self: torch.SymInt) -> int:
        caller = sys._getframe(1)  # noqa: SLF001
        if is_user_s(caller.f_code.co_filename):
            found.read.append(line_of(caller.f_code.co_filename, caller.f_lineno))
        return to_int(self)

    def fixed(self: ShapeEnv, symbol: Any, size: Any, message: str) -> None:
        if getattr(size, "is_number", False):
            found.fixed.append((int(size), _innermost(sys._getframe(1), outside)))  # noqa: SLF001
        fix(self, symbol, size, message)

    torch.SymBool.__bool__ = decided  # type: ignore[method-assign]
    torch.SymInt.__int__ = read  # type: ignore[method-assign]
    ShapeEnv._set_replacement = fixed  # type: ignore[method-assign, assignment] # noqa: SLF001
    try:
        yield found
    finally:
        torch.SymBool.__bool__ = decide  # type: ignore[method-assign]
        torch.SymInt.__int__ = to_int  # type: ignore[method-assign]
        ShapeEnv._set_replacement = fix  # type: ignore[method-assign] # noqa: SLF001


def _innermost(frame: FrameType | None, outside: FrameType) -> str:
    """The innermost line outside of libraries, below ``outside``."""
    while frame is not None and frame is not outside and not is_user_s(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None or frame is outside else line_of(frame.f_code.co_filename, frame.f_lineno)

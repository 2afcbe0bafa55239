"""Lines of functions that a module's ``forward`` calls, in the stacks of a traced graph's nodes.

`torch.export` records frames of functions called ``forward`` alone: an error would name the line that calls a helper,
not the line in it. Reason: the user's innermost line says what to change. Seen in 2.13; without the method that is
patched, stacks stay as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import StackSummary
from typing import Any

from torch.fx.experimental.symbolic_shapes import uninteresting_files
from torch.fx.proxy import TracerBase

from posexport.sources.torch_fixes.patch import patched


@contextmanager
def with_helper_lines() -> Iterator[None]:
    """Inside the block stacks have all frames from the first ``forward`` on."""
    if not hasattr(TracerBase, "_filter_traceback_frames"):
        yield
        return

    def frames(_tracer: Any, stack: StackSummary) -> StackSummary:
        first = next((place for place, frame in enumerate(stack) if frame.name == "forward"), len(stack))
        inner = [frame for frame in stack[first:] if frame.filename not in uninteresting_files()]
        return StackSummary.from_list(inner)

    with patched(TracerBase, "_filter_traceback_frames", frames):
        yield

"""Functions that a package wraps in ``torch.compile`` run as they are written.

Reason: compiled, they are specialised to the sizes and types of trial calls, take seconds for each, and fail in a
trace.

Seen in 2.13.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DYNAMO = "torch._dynamo"


@contextmanager
def without_compiling() -> Iterator[None]:
    """Inside the block nothing is compiled. ``torch.compile`` has imported its compiler where there is anything."""
    if _DYNAMO not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield

"""Whether the calling thread computes with denormal numbers, or takes them as 0, inside a block.

`posexport.load` opens sessions that take them as 0 (``session.set_denormal_as_zero``). ONNX Runtime sets that for its
own threads in every session, but for the calling thread, which computes too, only once a process, by the first session.
The thread's state is PyTorch's and NumPy's too. So the proof sets it itself: ONNX Runtime runs as in a fresh process
that loads the bundle, and the definition keeps denormals, whatever ran before.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: 1e-39, by its bits: read from text it would be 0 in a thread that takes denormals as 0
_DENORMAL = np.array([713624], np.int32).view(np.float32)


def are_kept() -> bool:
    """Whether the calling thread keeps denormals now."""
    # by bits again: a comparison, too, may take a denormal as 0
    return bool((_DENORMAL * np.float32(1)).view(np.int32)[0] != 0)


@contextmanager
def denormals(*, kept: bool) -> Iterator[None]:
    """Denormals kept, or taken as 0, in the calling thread inside the block; then as before."""
    before = are_kept()
    torch.set_flush_denormal(not kept)
    try:
        yield
    finally:
        torch.set_flush_denormal(not before)

"""Where values are rounded, float32 and float64 runs fall to different sides of a tie by chance."""

import torch
from torch import Tensor

from posexport.graph.ops.tracing import traced_as

#: the largest shift, of a step
TIES = 2.0**-11


def _none(x: Tensor) -> float:
    del x
    return 0.0


@traced_as(_none)
def tie_shift(x: Tensor) -> float:
    """What to add to ``x``, in steps, before it is rounded: up to `TIES` up or down in float32, 0 in float64.

    PyTorch's float32 run sets the tolerances of proofs, so luck must not spare it where a graph is not spared. The
    shift follows from the bits of ``x``, so two runs that should agree, as with other neighbours, differ. A graph has
    none.
    """
    if x.dtype == torch.float64:
        return 0.0
    bits = int(x.float().contiguous().view(torch.int32).sum(dtype=torch.int64))
    # the golden ratio of 2^32 spreads also sums with zeros in the low bits, as in bfloat16
    return TIES * ((bits * 0x9E3779B1 >> 28) % 16 - 7.5) / 7.5

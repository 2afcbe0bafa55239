"""Layers of attention without PyTorch's fused inference path, which packs padded rows into nested tensors.

In eval mode ``nn.TransformerEncoder`` with a padding mask returns zeros for padded tokens, and fewer columns where one
is padded in every row; ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call one fused operator. A graph
has neither, so that the reference must not.

Issues: pytorch/pytorch 177013, 121109. Seen in 2.13: a trace leaves the path by itself, a call does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Switches the fast path off inside the block; afterwards it is as it was before."""
    with ONE_AT_A_TIME:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

"""PyTorch's layers of attention, computed by the operators that a graph has.

In eval mode `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call one fused operator, which no exporter knows,
and `nn.TransformerEncoder` packs padded rows into a nested tensor, whose output is shorter where a column is padded in
every row. `nn.Transformer`'s layers also look at a mask's values, which a trace has not, to see whether it is causal.
All of that makes a call faster, and changes no output of a token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import transformer


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Inside the block PyTorch's own layers take the path that the graph takes; afterwards they are as they were."""
    before, detect = torch.backends.mha.get_fastpath_enabled(), transformer._detect_is_causal_mask  # noqa: SLF001
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._detect_is_causal_mask = _as_stated  # noqa: SLF001 (no public switch)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        transformer._detect_is_causal_mask = detect  # noqa: SLF001


def _as_stated(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    """``is_causal`` is a hint beside a mask: where the module gives none, the mask is added as any other."""
    return bool(is_causal)

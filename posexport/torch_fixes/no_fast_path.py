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
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules import transformer

#: PyTorch's own, which the block below stands before
SDPA = F.scaled_dot_product_attention


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Inside the block PyTorch's own layers take the path that the graph takes; afterwards they are as they were."""
    before, detect = torch.backends.mha.get_fastpath_enabled(), transformer._detect_is_causal_mask  # noqa: SLF001
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._detect_is_causal_mask = _as_stated  # noqa: SLF001 (no public switch)
    F.scaled_dot_product_attention = _decided
    try:
        yield
    finally:
        F.scaled_dot_product_attention = SDPA
        torch.backends.mha.set_fastpath_enabled(before)
        transformer._detect_is_causal_mask = detect  # noqa: SLF001


def _as_stated(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    """``is_causal`` is a hint beside a mask: where the module gives none, the mask is added as any other."""
    return bool(is_causal)


def _decided(*args: Any, **kwargs: Any) -> Tensor:
    """A truth of lengths such as ``is_causal=T > 1`` is decided: PyTorch reads its arguments before any mode."""
    given: list[Any] = [bool(each) if isinstance(each, torch.SymBool) else each for each in args]
    named: dict[str, Any] = {
        name: bool(each) if isinstance(each, torch.SymBool) else each for name, each in kwargs.items()
    }
    answer: Tensor = SDPA(*given, **named)
    return answer

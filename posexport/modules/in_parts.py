"""Compares chunked prefill of a decoder with a single call of the same decoder.

Shape letters: B batch, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posexport.definition.cached_decoder import CachedDecoder

#: of the largest logit: what two ways to compute it may differ by
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


def differ(a: Tensor, b: Tensor, mask_BT: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits of tokens that are no padding differ by more than rounding."""
    real = mask_BT != 0
    return not float((a[real] - b[real]).abs().max()) <= ROUNDING[dtype] * float(b[real].abs().max())


def in_calls(decoder: CachedDecoder, ids_BT: Tensor, mask_BT: Tensor, parts: Sequence[int]) -> Tensor:
    """Returns the logits of all tokens, computed in successive calls with ``parts`` new tokens."""
    held: tuple[Tensor, ...] = ()
    logits, end = [], 0
    for new in parts:
        start, end = end, end + new
        new_BTV, *present = decoder(ids_BT[:, start:end], mask_BT[:, :end], held)
        logits.append(new_BTV)
        held = tuple(present)
    return torch.cat(logits, 1)

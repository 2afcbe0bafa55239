"""The order that a mask function of transformers gives tokens: causality, and a sliding window.

Shape letters: T queries, S keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posexport.nn.cached_call import NotCachedError

#: queries at which mask functions are evaluated, far beyond any window, and keys after the last query
_ASKED, _AFTER = (5, 1 << 16, 1 << 18), 64


@dataclass(frozen=True)
class Order:
    """A causal mask; with ``window``, keys ``window`` or more tokens before the query are masked too."""

    window: int | None = None


def order_of(mask_function: Callable[..., Tensor]) -> Order:
    """The causal mask and window that ``mask_function`` computes, evaluated at a few queries (`_ASKED`).

    Raises:
        NotCachedError: the mask is anything else.
    """
    last = _ASKED[-1]
    keys_S, queries_T = torch.arange(last + _AFTER), torch.tensor(_ASKED)
    nought = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    try:
        kept = mask_function(nought, nought, queries_T[None, None, :, None], keys_S[None, None, None])
    except (IndexError, RuntimeError, TypeError) as err:
        raise NotCachedError("its mask depends on more than where tokens stand") from err
    kept_TS = kept.broadcast_to(1, 1, len(_ASKED), len(keys_S))[0, 0]
    if bool(kept_TS[-1, last + 1 :].any()):
        raise NotCachedError("its attention sees later tokens")
    window = int(kept_TS[-1].sum())
    behind_TS = queries_T[:, None] - keys_S
    if not torch.equal(kept_TS, (behind_TS >= 0) & (behind_TS < window)):
        raise NotCachedError("its mask is more than causality, a window and padding")
    return Order(None if window > last else window)

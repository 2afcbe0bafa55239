"""Compares calls of a decoder in parts, chunked prefill, with a single call.

Shape letters: B batch, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posexport.models.cached_decoder import CachedDecoder
from posexport.modules.around_forward import AroundForward
from posexport.nn.cached_call import NotCachedError

#: rows and tokens of the inputs that are compared with and without a cache
_ROWS, _LENGTH, _FAR = 3, 9, 1025
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


def check_calls(
    decoder: AroundForward, dtype: torch.dtype, keeps: str = "a KV cache", beside: str = "attention", far: int = _FAR
) -> None:
    """Compare logits of calls with the logits of the forward without a cache, of a short input and of a long one.

    ``keeps`` and ``beside`` are words of the message; ``far``: tokens of the long one.

    Raises:
        NotCachedError: they differ, or padding on the left changes them.
    """
    size, limit = decoder.inputs[0].size or 1, decoder.limits.max_length
    length, far = (min(most, limit or most) for most in (_LENGTH, far))
    with torch.inference_mode():
        for total, parts in ((length, (length - 2, 1, 1) if length > 2 else (1,) * length), (far, (far - 1, 1))):
            rows = _ROWS if total == length else 1
            ids_BT = torch.randint(0, size, (rows, total), generator=torch.Generator().manual_seed(rows))
            whole_BT, at = torch.ones_like(ids_BT), "" if total == length else f"at {total} tokens, and not before, "
            expected = decoder.uncached_logits(ids_BT, whole_BT)
            # a long input in parts alone: the first has all tokens but one
            ways = [parts] if total != length else [(total,), parts]
            for got in (in_calls(decoder, ids_BT, whole_BT, way) for way in ways):
                if differ(got, expected, whole_BT, dtype):
                    raise NotCachedError(
                        f"{at}with {keeps} its logits are others than without, so something beside {beside} looks "
                        "at other tokens or counts them"
                    )
            if total != length or length < 2:
                continue
            # rows that are padded on the left more and more have the logits of each row alone
            padded_BT = (torch.arange(total) >= torch.arange(rows)[:, None].clamp(max=total - 1)).to(torch.int64)
            for got in (decoder(ids_BT, padded_BT)[0], in_calls(decoder, ids_BT, padded_BT, parts)):
                for row, mask_T in enumerate(padded_BT):
                    alone_1T = ids_BT[row, mask_T != 0][None]
                    ones_1T = torch.ones_like(alone_1T)
                    if differ(got[row, mask_T != 0][None], decoder.uncached_logits(alone_1T, ones_1T), ones_1T, dtype):
                        raise NotCachedError("padding on the left changes its logits")

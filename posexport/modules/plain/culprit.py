"""The line of a module that computes something else for a new token when the tokens before it are in the cache.

Shape letters: B batch, T tokens.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from posexport.definition.cached_decoder import pairs
from posexport.errors import PosexportError
from posexport.modules.in_parts import ROUNDING
from posexport.modules.plain.cached_mode import CachedMode
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.recognise.mode import chosen
from posexport.nn.cached_call import CachedCall
from posexport.nn.caching import Reach
from posexport.system.user_code import line_of_frame


class _Watching(CachedMode):
    """Keeps what every function returns, and its line."""

    def __init__(self, of: CachedMode) -> None:
        vars(self).update(vars(of))
        self.seen: list[tuple[str, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        line = line_of_frame(sys._getframe(1))  # noqa: SLF001 (inspect.stack reads files)
        self.seen += [(line, leaf.clone()) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        return out


def culprit(decoder: PlainDecoder, ids_BT: Tensor) -> str:
    """The first line whose answer for the last token depends on how many are read with it; nothing where none does."""
    mask_BT, before = torch.ones_like(ids_BT), ids_BT.shape[1] - 1
    _, *held = decoder(ids_BT[:, :before], mask_BT[:, :before])
    past = pairs(held)
    watched: list[list[tuple[str, Tensor]]] = []
    for own_BT, kept in ((ids_BT, None), (ids_BT[:, before:], past)):
        at = Reach.by_mask(mask_BT, own_BT.shape[1], decoder.caching)
        mode = _Watching(decoder.mode(CachedCall(at, mask_BT, kept)))
        try:
            with chosen(mode):
                decoder.logits(own_BT, mask_BT[:, before:] if kept else mask_BT, at)
        except PosexportError:
            return ""
        watched.append(mode.seen)
    at_once, alone = watched
    for (line, whole), (_, last) in zip(at_once, alone, strict=False):
        if line and _other(whole, last, ids_BT.shape[1]):
            return line
    return ""


def _other(whole: Tensor, last: Tensor, length: int) -> bool:
    """Whether ``last`` is not what ``whole`` has at its end, on the one axis in which they differ."""
    if whole.ndim != last.ndim:
        return False
    axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != last.shape[axis]]
    if len(axes) > 1 or any((whole.shape[axis], last.shape[axis]) != (length, 1) for axis in axes):
        return False
    own = whole.narrow(axes[0], length - 1, 1) if axes else whole
    if not own.is_floating_point():
        return not torch.equal(own, last)
    return not float((own - last).abs().max()) <= ROUNDING[torch.float32] * float(own.abs().max())

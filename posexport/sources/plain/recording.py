"""One call without a cache, in which the calls that may be about the token axis and every attention are noted.

Shape letters: B batch, H heads, T tokens, D head size.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posexport.sources.plain import causality, sites
from posexport.sources.plain.plan import Context, Count, Noted, Order, Rows, Scores, Step
from posexport.sources.recognise import attention
from posexport.sources.recognise.mode import Recognised
from posexport.sources.user_module import calling_line


@dataclass
class _Call:
    kind: str
    read: sites.Read
    line: str
    step: Step = None


class Recording(Recognised):
    """``order``: what is padded in this call; ``tolerance``: what a logarithm of probabilities may be off."""

    def __init__(self, order: Order, tolerance: float) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._shapes: list[tuple[int, int]] = []
        self._refused: list[str] = []
        self._causal = 0
        self._order, self._tolerance, self._length = order, tolerance, order.real_BT.shape[1]

    @property
    def noted(self) -> Noted:
        """What the call was."""
        calls = [(call.kind, call.line) for call in self._calls]
        return Noted(calls, [call.step for call in self._calls], self._shapes, self._causal, self._refused)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = sites.SITES.get(func)
        if kind is None:
            return super().__torch_function__(func, types, args, kwargs)
        self._note(kind, sites.read(kind, func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note(self, kind: str, read: sites.Read) -> None:
        call = _Call(kind, read, _line())
        self._calls.append(call)
        if isinstance(read, sites.Multiplying):
            self._by_hand(call, read)
        else:
            call.step = self._of_new_tokens(read)

    def _of_new_tokens(self, read: "sites.Counting | list[sites.Slicing] | None") -> Step:
        if isinstance(read, sites.Counting):
            return Count(read.start) if read.end - read.start == self._length else None
        ends = [which for which, each in enumerate(read or []) if each.end - each.start == self._length]
        if read is None or len(ends) != 1:  # none, or a mask of all pairs
            return None
        return Rows(read[ends[0]].start, read[ends[0]].size, ends[0])

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        self._note("product", sites.Multiplying(left, right))
        return left @ right

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        given: Sequence[Tensor],
        dropout: float = 0.0,
        *,
        is_causal: bool,
        scale: float | None = None,
        grouped: bool = False,
    ) -> Tensor:
        reason = attention.refusal(q, k, v, given, dropout, scale)
        if not reason and q.shape[-2] != k.shape[-2]:
            reason = "its keys are not those of its queries"
        reason = reason or causality.of_masks(given, self._order, is_causal=is_causal, axes=q.ndim)
        self._found(k, v, reason)
        return attention.formula(q, k, v, given, is_causal=is_causal, scale=scale, grouped=grouped)

    def _multi_head(self, call: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        before = len(self.reasons)
        answer = super()._multi_head(call)
        self._refused += [f"{reason} ({_line()})" for reason in self.reasons[before:] if reason]
        return answer

    def _by_hand(self, call: _Call, product: sites.Multiplying) -> None:
        """Of a product with probabilities of all pairs: the scores are the last product of all pairs before it."""
        p, v = product.left, product.right
        if p.ndim not in (3, 4) or p.shape[-2:] != (self._length, self._length) or v.shape[-2] != self._length:
            return
        before = [c for c in self._calls[:-1] if isinstance(c.read, sites.Multiplying) and self._all_pairs(c.read)]
        if not before or not isinstance(before[-1].read, sites.Multiplying) or before[-1].step is not None:
            return
        q, k = before[-1].read.left, before[-1].read.right.mT
        found = causality.of_probabilities(p, q @ k.mT, self._order, self._tolerance)
        self._found(k, v, found if isinstance(found, str) else "")
        if isinstance(found, float):
            before[-1].step, call.step = Scores(), Context(found)

    def _all_pairs(self, product: sites.Multiplying) -> bool:
        q, k_mT = product.left, product.right
        return q.ndim == k_mT.ndim > 2 and (q.shape[-2], k_mT.shape[-1]) == (self._length, self._length)

    def _found(self, k: Tensor, v: Tensor, reason: str) -> None:
        rows = self._order.real_BT.shape[0]
        heads = k.shape[1] if k.ndim == 4 else max(1, k.shape[0] // rows)
        self._shapes.append((heads, k.shape[-1]))
        if not reason and v.shape[-1] != k.shape[-1]:
            reason = "its values are not as wide as its keys"
        self._causal += reason != causality.LATER
        if reason:
            self._refused.append(f"{reason} ({_line()})")


def _line() -> str:
    return calling_line(sys._getframe(1))  # noqa: SLF001 (inspect.stack reads files)

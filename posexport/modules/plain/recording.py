"""One call without a cache, in which the calls that may be about the token axis and every attention are noted.

Shape letters: B batch, H heads, T tokens, D head size.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posexport.modules.plain import causality, shared_heads, sites
from posexport.modules.plain.plan import Count, Last, Noted, Numbers, Order, PlannedCall, Rows, Scores, Step
from posexport.modules.recognise import attention
from posexport.modules.recognise.mode import Recognised, chosen
from posexport.modules.user_module import UserModule
from posexport.system.user_code import line_of_frame


@dataclass
class _Call:
    kind: str
    read: sites.Read
    site: sites.Site
    line: str
    step: Step = None


class Recording(Recognised):
    """``order``: what is padded in this call; ``tolerance``: what a logarithm of probabilities may be off.

    ``untried``: lengths that the module takes and nobody tries. ``of_last``: the module returns logits of one token.
    """

    def __init__(self, order: Order, tolerance: float, untried: range, *, of_last: bool) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._shapes: list[tuple[int, int]] = []
        self._refused: list[str] = []
        self._windows: list[tuple[int | None, str]] = []
        self._slopes: list[tuple[float, ...]] = []
        self._causal = 0
        self._untried, self._of_last = untried, of_last
        self._order, self._tolerance, self._length = order, tolerance, order.real_BT.shape[1]

    @property
    def noted(self) -> Noted:
        """What the call was."""
        calls = [PlannedCall(call.kind, call.site, call.step) for call in self._calls]
        lines = [call.line for call in self._calls]
        return Noted(calls, lines, self._shapes, self._causal, self._refused, self._windows, self._slopes)

    def of(self, user: UserModule, tensors: Mapping[str, Tensor]) -> Noted:
        """What is noted in one call."""
        with torch.no_grad(), chosen(self):
            user(**tensors)
        return self.noted

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = sites.SITES.get(func)
        if kind is None:
            self._check_numbers(func, args)
            return super().__torch_function__(func, types, args, kwargs)
        call = self._note(kind, sites.read(kind, func, args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if kind == "slice":
            self._check_table(call.read, args[0])
        if kind == "sum" and self._numbers(out):
            call.step = Numbers()
        if func is Tensor.__getitem__ and self._of_last and self._last(*args):
            call.step = Last()
        return out

    def _note(self, kind: str, read: sites.Read) -> _Call:
        call = _Call(kind, read, sites.calling_site(sys._getframe()), _line())  # noqa: SLF001
        self._calls.append(call)
        if isinstance(read, sites.Multiplying):
            self._by_hand(call, read)
        else:
            call.step = self._of_new_tokens(read)
        return call

    def _check_numbers(self, func: Callable[..., Any], args: Sequence[Any]) -> None:
        """Positions are compared with a number that none of the tried inputs reaches: a window, a clip."""
        if sites.compares(func) and isinstance(args[0], Tensor) and args[0].shape[:1] != self._order.real_BT.shape[:1]:
            numbers = [float(n) for n in args if isinstance(n, int | float) or (isinstance(n, Tensor) and n.ndim == 0)]
            far = [n for n in numbers if self._untried.start <= abs(n) < self._untried.stop]
            self._refused += [f"it compares with {far[0]:.0f}, more tokens than are tried ({_line()})"] if far else []

    def _check_table(self, read: sites.Read, table: Tensor) -> None:
        """A mask of all pairs in a table that is larger than what is tried must be causal to its end."""
        ends = [each for each in read or [] if each.end - each.start == self._length] if isinstance(read, list) else []
        if len(ends) != 2 or table.ndim < 2 or table.shape[-1] not in self._untried:
            return
        lower = torch.ones(table.shape[-2:], dtype=torch.bool, device=table.device).tril()
        if not torch.equal(table, torch.where(lower, table[..., :1, :1], table[..., :1, 1:2])):
            self._refused.append(f"its mask's table is more than causality beyond what is tried ({_line()})")

    def _numbers(self, out: Tensor) -> bool:
        """Whether ``out`` numbers the tokens of every row, those that are no padding or all."""
        real_BT = self._order.real_BT
        if out.shape != real_BT.shape:
            return False
        return any(torch.equal(out.long(), x_BT.long().cumsum(1)) for x_BT in (real_BT, torch.ones_like(real_BT)))

    def _last(self, x: Tensor, index: Any) -> bool:
        tokens = x.is_floating_point() and x.ndim == 3 and x.shape[:2] == self._order.real_BT.shape
        return tokens and sites.picks_last(x, index)

    def _of_new_tokens(self, read: "sites.Counting | list[sites.Slicing] | None") -> Step:
        if isinstance(read, sites.Counting):
            return Count(read.start) if read.end - read.start == self._length else None
        # a slice that ends beyond the axis has fewer
        ends = [
            which
            for which, each in enumerate(read or [])
            if each.end - each.start == self._length and each.end <= each.size
        ]
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
        heads = q.shape[1] if q.ndim > 3 else 1
        seen = causality.of_masks(given, self._order, is_causal=is_causal, axes=q.ndim, heads=heads)
        self._found(k, v, reason or seen)
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
        self._found(k, v, found if isinstance(found, str) else found[1])
        if not isinstance(found, str):
            before[-1].step, call.step = Scores(), found[0]

    def _all_pairs(self, product: sites.Multiplying) -> bool:
        q, k_mT = product.left, product.right
        return q.ndim == k_mT.ndim > 2 and (q.shape[-2], k_mT.shape[-1]) == (self._length, self._length)

    def _found(self, k: Tensor, v: Tensor, seen: Order | str) -> None:
        """``seen``: what the mask leaves, or why a cache cannot go through."""
        rows = self._order.real_BT.shape[0]
        self._shapes.append((shared_heads.kv_heads(k, v, rows), max(k.shape[-1], v.shape[-1])))
        reason = seen if isinstance(seen, str) else ""
        self._causal += reason != causality.LATER
        self._slopes.append(() if isinstance(seen, str) else seen.slopes)
        self._windows.append((None if isinstance(seen, str) else seen.window, _line()))
        if reason:
            self._refused.append(f"{reason} ({_line()})")


def _line() -> str:
    return line_of_frame(sys._getframe(1))  # noqa: SLF001 (inspect.stack reads files)

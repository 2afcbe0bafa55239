"""One call of a plain module as a decoder with a KV cache, by the plan of what it does along the token axis.

Shape letters: B batch, H heads, G KV heads, T new tokens, S past and new tokens, D head size.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.modules.plain import by_row, sites
from posexport.modules.plain.plan import Context, Count, Last, Numbers, Plan, Rows, Scores, Step
from posexport.modules.plain.shared_heads import each_once, of_heads
from posexport.modules.recognise.attention import of_seeing
from posexport.modules.recognise.mode import Recognised
from posexport.nn.attention import SoftCapped, additive, attend, sees_any
from posexport.nn.cached_call import CachedCall
from posexport.nn.caching import narrowed, widened

#: axes of split heads
_SPLIT = 4
_OTHER_CALLS = "forward makes other calls than in its first call; it must make the same ones for every input"


class CachedMode(Recognised):
    """Attention and positions of the new tokens are those of ``call``; all else is the module's own.

    ``terms``: what is added to the scores of every attention.
    """

    def __init__(self, plan: Plan, terms: Sequence[Encoding], call: CachedCall) -> None:
        super().__init__()
        self._plan, self._terms, self._call = plan, terms, call
        self._index = 0
        self._pending: tuple[Tensor, Tensor] | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = sites.SITES.get(func)
        if kind is not None and isinstance(self._plan.calls[self._planned(kind)].step, Count | Rows):
            return self._answer(func, types, args, kwargs)
        return by_row.computed(func, args, kwargs, lambda *own, **named: self._answer(func, types, own, named))

    def _answer(self, func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind = sites.SITES.get(func)
        if kind is None:
            return super().__torch_function__(func, types, args, kwargs)
        step = self._taken(kind)
        read = sites.read(kind, func, args, kwargs) if step is not None else None
        if isinstance(step, Count) and isinstance(read, sites.Counting):
            return self._counted(step, func(*args, **kwargs))
        if isinstance(step, Rows) and isinstance(read, list):
            return self._rows(step, args[0], read[step.which])
        if isinstance(read, sites.Multiplying):
            return self._product(step, read, lambda: func(*args, **kwargs))
        if isinstance(step, Numbers) and kind == "sum":
            return (self._call.at.queries.ids_BT + 1).to(func(*args, **kwargs).dtype)
        if isinstance(step, Last) and kind == "slice":
            return args[0]
        if step is not None:
            raise PosexportError(_OTHER_CALLS)
        return func(*args, **kwargs)

    def _planned(self, kind: str) -> int:
        """The next call of the plan at the line that makes one now; those before it are left out this time.

        A library may leave out what makes a mask where it is all ones, and put it in where a graph is traced.
        """
        site = sites.calling_site(sys._getframe())  # noqa: SLF001 (inspect.stack reads files)
        for index in range(self._index, len(self._plan.calls)):
            if self._plan.calls[index][:2] == (kind, site):
                return index
        raise PosexportError(_OTHER_CALLS)

    def _taken(self, kind: str) -> Step:
        index = self._planned(kind)
        self._index = index + 1
        return self._plan.calls[index].step

    def _counted(self, step: Count, of_call: Tensor) -> Tensor:
        """``of_call``: what the module's arange gives, whose dtype is kept."""
        queries = self._call.at.queries
        slots_T = (queries.slots_T + step.start).to(of_call.dtype)
        return by_row.positions(slots_T, (queries.ids_BT + step.start).to(of_call.dtype))

    def _rows(self, step: Rows, table: Tensor, read: sites.Slicing) -> Tensor:
        queries, whole, axis = self._call.at.queries, read.whole(table), read.out
        # PyTorch's exporter picks rows of real numbers alone
        of_complex = whole.is_complex()
        numbers = torch.view_as_real(whole) if of_complex else whole
        of_slots = numbers.index_select(axis, queries.slots_T + step.start)
        rows_BT = numbers.movedim(axis, 0)[queries.ids_BT + step.start].movedim(1, axis + 1)
        if of_complex:
            of_slots, rows_BT = torch.view_as_complex(of_slots), torch.view_as_complex(rows_BT)
        return by_row.positions(of_slots, rows_BT)

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return self._product(self._taken("product"), sites.Multiplying(left, right), lambda: left @ right)

    def _product(self, step: Step, read: sites.Multiplying, plain: Callable[[], Tensor]) -> Tensor:
        if isinstance(step, Scores):
            self._pending = read.left, read.right.mT
        elif isinstance(step, Context):
            if self._pending is None:
                raise PosexportError(_OTHER_CALLS)
            (q, k), self._pending = self._pending, None
            self.reasons.append(None)
            return self._attended(q, k, read.right, step, axes=read.left.ndim)
        return plain()

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        given: Sequence[Tensor],  # causality and padding, as the plan has seen
        dropout: float = 0.0,
        *,
        is_causal: bool,
        scale: float | None = None,
        grouped: bool = False,
    ) -> Tensor:
        del given, dropout, is_causal, grouped
        self.reasons.append(None)
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        return self._attended(q, k, v, Context((scale,)), axes=q.ndim)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, how: Context, *, axes: int) -> Tensor:
        """Of the new tokens to the cached ones and themselves, [B, H, T, D], or [B * H, T, D] of three ``axes``."""
        call, rows = self._call, self._call.mask_BS.shape[0]
        q_BHTD, k_BHTD, v_BHTD = (of_heads(x, rows) for x in (q, k, v))
        scale = how.scale[0]
        if len(how.scale) > 1:
            q_BHTD = q_BHTD * torch.tensor(how.scale, dtype=q.dtype, device=q.device)[:, None, None]
            scale = 1.0
        kv_heads, size = self._plan.shapes[len(call.present)]
        k_BGTD, v_BGTD = (each_once(x, x.shape[1] // kv_heads) for x in (k_BHTD, v_BHTD))
        q_BHTD, k_BGTD, v_BGTD = (widened(x, size) for x in (q_BHTD, k_BGTD, v_BGTD))
        past = None if call.past is None else call.past[len(call.present)]
        term = self._terms[len(call.present)]
        kept = call.at.kept(term, k_BGTD, v_BGTD, past)
        call.present.append(kept.present)
        causal, mask = (call.at.queries, call.at.keys), additive(call.mask_BS, q)
        context_BHTD = attend(
            q_BHTD,
            kept.keys,
            kept.values,
            scale=scale,
            mask=mask,
            scores=term.scores(q_BHTD, kept.keys, *causal),
            base=None if how.cap is None else SoftCapped(how.cap / scale).base(kept.keys, *causal),
            causal=causal,
            buffers=kept.buffers,
        )
        assert mask is not None
        context_BHTD = of_seeing(narrowed(context_BHTD, v.shape[-1]), sees_any(mask, causal).mT)
        return context_BHTD if axes == _SPLIT else context_BHTD.flatten(0, 1)

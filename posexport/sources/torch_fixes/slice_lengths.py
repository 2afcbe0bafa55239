"""Slices between sizes, ``x[:, n // 2 - 4 : n // 2 + 4]``, have lengths that the tracer follows.

Where it does not know whether a bound is negative at some sizes, it takes an unbacked symbol for the length, which no
later line can use. Here bounds are on the side that they have at the traced sizes. ONNX's Slice decides anew at each
size, and the proof finds a later line that does not.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._subclasses import fake_impls

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME

_SLICE = torch.ops.aten.slice.Tensor
#: parts of a formula, up to which a bound is followed
_LONGEST = 40


@contextmanager
def with_slice_lengths() -> Iterator[None]:
    """Inside the block lengths of slices are computed of their bounds."""
    rules: dict[Any, Callable[..., Any]] = fake_impls.op_implementations_dict
    before = rules.get(_SLICE)
    if before is None:  # an older PyTorch guards by the sizes of the trace
        yield
        return

    def slice_forward(
        fake_mode: Any, func: Any, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
    ) -> Tensor:
        size = x.shape[dim] if x.dim() else 1
        bounds = _bounds(size, start, end) if step == 1 else None
        if bounds is None:
            sliced: Tensor = before(fake_mode, func, x, dim, start, end, step)
            return sliced
        sizes, strides = list(x.shape), x.stride()
        sizes[dim] = bounds[1] - bounds[0]
        return x.as_strided(sizes, strides, x.storage_offset() + bounds[0] * strides[dim])

    with ONE_AT_A_TIME:
        rules[_SLICE] = slice_forward
        try:
            yield
        finally:
            rules[_SLICE] = before


def _bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any] | None:
    """Where the slice starts and ends, if PyTorch does not know it but for the sizes of the trace; else None."""
    given = [bound for bound in (start, end) if isinstance(bound, SymInt)]
    if all(fake_impls._compute_slice_index(size, bound) is not None for bound in given):  # noqa: SLF001
        return None
    if not all(_traced(number) is not None for number in (size, *given)) or any(map(_is_long, given)):
        return None
    first, last = _from_start(0 if start is None else start, size), size if end is None else _from_start(end, size)
    return (first, last) if _traced(first) <= _traced(last) else None


def _is_long(symbol: SymInt) -> bool:
    """Whether formulas of the symbol would take PyTorch minutes: they grow with every layer's padding."""
    left, count = [symbol.node.expr], 0
    while left and count <= _LONGEST:
        left.extend(left.pop().args)
        count += 1
    return count > _LONGEST


def _from_start(bound: Any, size: Any) -> Any:
    bound = bound if _traced(bound) >= 0 else size + bound
    return size if _traced(bound) > _traced(size) else bound


def _traced(number: Any) -> Any:
    """The number at the sizes of the trace, None for a symbol without one."""
    return number.node.hint if isinstance(number, SymInt) else number

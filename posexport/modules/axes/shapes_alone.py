"""Calls of a module whose large tensors have shapes and no values, to see whether it accepts a size.

What decides on sizes are shapes and integers: tables end where a shape does not fit or an index is beyond the rows.
Integers and small tensors are computed; scores of attention are not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: elements of a tensor that is computed: of real numbers, and of any (scores of 4,096 tokens)
_LARGE, _MOST = 1 << 22, 1 << 24
_aten = torch.ops.aten
#: beside those that PyTorch calls pointwise
_PRODUCTS = (_aten.mm.default, _aten.bmm.default, _aten._unsafe_view.default, _aten._to_copy.default)  # noqa: SLF001


class ShapesAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block operators give large tensors of real numbers without values, and what is computed from them."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = FakeTensorMode(allow_non_fake_inputs=True)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor without values."""
        with self._shapes:
            return torch.empty(shape, dtype=dtype)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not all(_inside(func, args)):
            raise IndexError(f"{func}: an index is beyond the size of its axis")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            # a look at the shapes takes 100 times as long as a step of a recurrence
            if func.is_view and not any(map(_is_large, tree_leaves(view := func(*args, **kwargs)))):
                return view
            if _multiplies_at_most(func) and math.prod(tensor.numel() for tensor in tensors) <= _LARGE:
                return func(*args, **kwargs)
            # converted here: `FakeTensorMode` computes what it converts itself
            fake_args, fake_kwargs = tree_map_only(Tensor, self._shapes.from_tensor, (args, dict(kwargs)))
            try:
                with self._shapes:
                    shapes = func(*fake_args, **fake_kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException):
                return func(*args, **kwargs)  # a value of a tensor that has some
            if any(map(_is_large, tree_leaves(shapes))):
                return shapes
        return func(*args, **kwargs)


def _multiplies_at_most(func: Any) -> bool:
    """Whether the result has no more elements than the product of the arguments' numbers of elements."""
    return torch.Tag.pointwise in func.tags or func in _PRODUCTS


def _is_large(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > (_LARGE if value.is_floating_point() else _MOST)


def _inside(func: Any, args: tuple[Any, ...]) -> Iterator[bool]:
    """Whether indices with values are within the axes that they index."""
    if func is _aten.embedding.default:
        yield _within(args[1], len(args[0]))
    elif func in (_aten.gather.default, _aten.index_select.default):
        yield _within(args[2], args[0].shape[args[1]] if args[0].dim() else 1)
    elif func is _aten.index.Tensor and not any(_is_mask(index) for index in args[1]):
        for index, size in zip(args[1], args[0].shape, strict=False):
            yield index is None or _within(index, size)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _within(index: Tensor, size: int) -> bool:
    if isinstance(index, FakeTensor) or not index.numel():
        return True
    least, most = index.aminmax()
    return -size <= int(least) and int(most) < size

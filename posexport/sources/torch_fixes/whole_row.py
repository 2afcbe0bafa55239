"""``lengths.max()`` in a trace, where one row of every batch is whole: it is the size of the sequence.

PyTorch's tracer makes a new symbol for the number, which no size equals, so that a mask of as many columns,
``torch.arange(lengths.max()) < lengths[:, None]``, fits no features. Inside the mode each tensor that is made of the
lengths, by operations that keep their order, has the value of the whole row in a table. It is used where a size is
needed: in ``arange``, ``expand``, slices and the like, ``.item()``, comparisons, and in ``int``, ``min`` and ``max``
(`posexport.sources.torch_fixes.symbolic_int`). Elsewhere the tensor counts. ``lengths.tolist()`` is a list that knows
its tensor, so that ``max`` and ``len`` of it are sizes, and ``x.new(list)`` the tensor, as in ESPnet's masks.

Issue: none known. Seen in 2.13.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: functions of PyTorch with sizes, indices or slices among their arguments
_SIZED = frozenset(
    [
        *("arange", "linspace", "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"),
        *("expand", "broadcast_to", "repeat", "view", "reshape", "narrow", "unflatten", "split", "pad", "getitem"),
    ]
)
#: those that give the same numbers, in another shape or type
_KEEP = frozenset(
    [
        *("clone", "contiguous", "detach", "cpu", "cuda", "float", "double", "type_as"),
        *("view", "reshape", "flatten", "unsqueeze", "squeeze", "expand"),
    ]
)
_TO_INTEGERS = ("long", "int", "to", "type")
#: the largest denominator of a number that sizes are computed with: others, as of 0.1, would exceed int64
_FINEST = 2**16
#: functions that give Python a number
_OF_NUMBERS = ("item", "__int__", "__index__")
#: functions that make a tensor of a list
_TO_TENSORS = ("new", "new_tensor", "tensor", "as_tensor")
#: functions that look like those in place, and are not
_NOT_IN_PLACE = ("__index__", "__int__", "__invert__")
_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")


@dataclass(frozen=True)
class _Whole:
    """The value of the whole row, ``top / bottom``; ``alone``: the tensor is this number, not one for each row."""

    top: Any
    bottom: int = 1
    alone: bool = False

    def plus(self, number: Any) -> "_Whole":
        share = Fraction(number) if isinstance(number, int | float) else None
        if share is None:
            return replace(self, top=self.top + number * self.bottom)
        top = self.top * share.denominator + share.numerator * self.bottom
        return replace(self, top=top, bottom=self.bottom * share.denominator)

    def times(self, share: Fraction) -> "_Whole":
        return replace(self, top=self.top * share.numerator, bottom=self.bottom * share.denominator)

    def rounded(self, how: str | None) -> "_Whole":
        if how is None or self.bottom == 1:
            return self
        return replace(self, top=-(-self.top // self.bottom) if how == "ceil" else self.top // self.bottom, bottom=1)


class Listed(list[Any]):
    """``tensor.tolist()`` of lengths in a trace: its one item is the size, the largest of them."""

    def __init__(self, tensor: Tensor, size: Any) -> None:
        super().__init__([size])
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)


class WholeRow(TorchFunctionMode):
    """A trace in which the largest of ``lengths`` [B] is ``size``."""

    def __init__(self, lengths: Sequence[Tensor], size: Any) -> None:
        super().__init__()
        # tensors by identity, which stay alive with it
        self._known: dict[int, tuple[Tensor, _Whole]] = {}
        self._decided: dict[int, tuple[Tensor, Any]] = {}
        for tensor in lengths:
            self._keep(tensor, _Whole(size))

    def __enter__(self) -> "WholeRow":
        self._token: Token[WholeRow | None] = _CURRENT.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _CURRENT.reset(self._token)

    def size(self, value: Any) -> Any:
        """The size that a tensor of one integer is; None for another value."""
        whole = self._of(value)
        if whole is None or not whole.alone or whole.bottom != 1 or value.dim() or value.is_floating_point():
            return None
        return whole.top

    def listed(self, tensor: Tensor) -> Listed | None:
        """``tensor.tolist()`` of lengths; None for another tensor."""
        whole = self._of(tensor)
        return None if whole is None or whole.alone or whole.bottom != 1 else Listed(tensor, whole.top)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__
        first = args[0] if args else None
        if _is_in_place(name) and self._of(first) is not None:
            self._known.clear()  # views of it have other values as well
        if name in _OF_NUMBERS and (size := self.size(first)) is not None:
            return size if name == "item" else int(size)
        if name in _TO_TENSORS and (listed := next((arg for arg in args if isinstance(arg, Listed)), None)) is not None:
            dtype = first.dtype if isinstance(first, Tensor) else torch.int64
            return listed.tensor.to(kwargs.get("dtype") or dtype)
        if name == "__bool__" and id(first) in self._decided:
            return bool(self._decided[id(first)][1])
        name = name.strip("_")
        if name in _SIZED:
            args, kwargs = self._as_sizes(tuple(args)), self._as_sizes(kwargs)
        result = func(*args, **kwargs)
        self._carry(name, result, args, kwargs)
        return result

    def _keep(self, tensor: Tensor, whole: _Whole) -> None:
        self._known[id(tensor)] = (tensor, whole)

    def _of(self, value: Any) -> _Whole | None:
        return self._known[id(value)][1] if isinstance(value, Tensor) and id(value) in self._known else None

    def _as_sizes(self, value: Any) -> Any:
        """``value`` with sizes in the place of tensors that are one."""
        if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
            return type(value)(map(self._as_sizes, value))
        if isinstance(value, dict):
            return {key: self._as_sizes(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._as_sizes(part) for part in (value.start, value.stop, value.step)))
        size = self.size(value)
        return value if size is None else size

    def _carry(self, name: str, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note what is known of the result of a function."""
        whole, rest = self._of(args[0] if args else None), [*args[1:], *kwargs.values()]
        if name in ("add", "mul") and whole is None and len(args) > 1:  # 1 + lengths
            whole, rest = self._of(args[1]), [args[0]]
        if whole is None:
            return
        number = rest[0] if rest else None
        if whole.alone and isinstance(number, Tensor):
            number = self.size(number)
        if any(isinstance(argument, Tensor) for argument in rest) and not whole.alone:
            return
        if name == "max" and args[0].dim() <= 1 and rest in ([], [0], [-1]):
            largest = result if isinstance(result, Tensor) else result[0]
            self._keep(largest, replace(whole, alone=True))
        elif name == "amax" and args[0].dim() <= 1:
            self._keep(result, replace(whole, alone=True))
        elif name == "sort" and args[0].dim() == 1:
            self._keep(result[0], whole)
        elif name in _COMPARISONS and whole.alone and whole.bottom == 1 and isinstance(number, int | torch.SymInt):
            self._decided[id(result)] = (result, getattr(operator, name)(whole.top, number))
        elif isinstance(result, Tensor) and (new := _computed(name, whole, number, kwargs, result)) is not None:
            self._keep(result, new)


def _computed(name: str, whole: _Whole, number: Any, kwargs: Mapping[str, Any], result: Tensor) -> _Whole | None:
    """The value of the whole row in a ``result`` that grows with the lengths; None where it is not known to."""
    is_size = isinstance(number, int | torch.SymInt)
    is_number = isinstance(number, int | float) and Fraction(number).denominator <= _FINEST
    rounding = {"trunc": "floor"}.get(kwargs.get("rounding_mode") or "", kwargs.get("rounding_mode"))
    if name in ("add", "sub") and (is_number or is_size) and "alpha" not in kwargs:
        return whole.plus(number if name == "add" else -number)
    if name == "rsub" and whole.alone and is_size:
        return whole.times(Fraction(-1)).plus(number)
    if name == "mul" and is_number and number > 0:
        return whole.times(Fraction(number))
    if name in ("div", "true_divide", "truediv") and is_number and number > 0:
        return whole.times(1 / Fraction(number)).rounded(rounding)
    if name in ("floor_divide", "floordiv") and is_number and number > 0:
        return whole.times(1 / Fraction(number)).rounded("floor")
    if name in ("floor", "ceil"):
        return whole.rounded(name)
    if result.dtype == torch.bool:
        return None
    if name in _TO_INTEGERS:
        return whole if result.is_floating_point() else whole.rounded("floor")
    return whole if name in _KEEP else None


def _is_in_place(name: str) -> bool:
    """Whether a function changes its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    is_method = name.startswith("__") and name.endswith("__")
    return name not in _NOT_IN_PLACE and (name.startswith(("__i", "__set")) if is_method else name.endswith("_"))


_CURRENT: ContextVar[WholeRow | None] = ContextVar("posexport_whole_row", default=None)


def listed_of(tensor: Tensor) -> Listed | None:
    """``tensor.tolist()`` of lengths in a trace with a whole row; None for other tensors."""
    mode = _CURRENT.get()
    return None if mode is None else mode.listed(tensor)


def size_of(value: Any) -> Any:
    """The size that a tensor is in a trace with a whole row; None for other values."""
    mode = _CURRENT.get()
    return None if mode is None or not isinstance(value, Tensor) else mode.size(value)

"""Sizes in a traced module stay symbolic where Python makes numbers of them.

``int(height * patch_size)``, transformers' ``torch_int(height)``, ``len(x)``, ``math.sqrt(length)``,
``np.ceil(length / 4)``, ``torch.as_tensor([height, width])``, ``torch.linspace(0, height, height)`` and
``x.split(batch)`` make numbers of sizes, so that the graph takes no others, as do ``math.log(length)`` and
``torch.tensor(range(length))``; ``min(7, len(x))`` is decided for all sizes. Inside the block functions return
symbols, logarithms and tensors computed of sizes, or compute with them;
``x.chunk(math.ceil(len(x) / 128))`` makes as many parts as at the traced size. Other values are
converted as usual; the proof at other sizes decides whether the graph is right.

Issue: pytorch/pytorch 138853. Seen in 2.13.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.sources.torch_fixes import splits
from posexport.sources.torch_fixes.einx_elementwise import SymbolicEinx
from posexport.sources.torch_fixes.whole_row import Listed, size_of

_SYMBOLS = (torch.SymInt, torch.SymFloat)


class _IntType(type):
    """Makes ``isinstance(x, int)`` of a patched module what it was."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        number = _number(args[0]) if args else None
        if isinstance(number, _SYMBOLS):
            return torch.sym_int(number)  # type: ignore[no-untyped-call]
        return int(*args, **kwargs)


@dataclass(frozen=True)
class _Range:
    """``range`` of sizes: the numbers of the traced sizes, until a tensor is made of it."""

    start: Any
    stop: Any
    step: Any

    def __iter__(self) -> Iterator[int]:
        return iter(range(int(self.start), int(self.stop), int(self.step)))

    def __len__(self) -> int:
        return len(range(int(self.start), int(self.stop), int(self.step)))

    def __getitem__(self, index: Any) -> Any:
        return range(int(self.start), int(self.stop), int(self.step))[index]


class _RangeType(type):
    """Makes ``isinstance(x, range)`` of a patched module what it was."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, range | _Range)

    def __call__(cls, *args: Any) -> Any:
        if not any(isinstance(arg, torch.SymInt) for arg in args):
            return range(*args)
        start, stop = (0, args[0]) if len(args) == 1 else args[:2]
        return _Range(start, stop, args[2] if len(args) > 2 else 1)


class _SymbolicRange(metaclass=_RangeType):
    """``range`` that keeps symbolic sizes."""


def _number(x: Any) -> Any:
    """``x``, or the size that a tensor is (`whole_row`)."""
    size = size_of(x)
    return x if size is None else size


class _SymbolicInt(metaclass=_IntType):
    """``int`` that returns a symbolic int for a symbolic number."""


def _torch_int(x: Any) -> Any:
    """``transformers.utils.torch_int`` that keeps symbolic numbers."""
    return torch.sym_int(x) if isinstance(x, _SYMBOLS) else int(x)  # type: ignore[no-untyped-call]


def _len(x: Any) -> Any:
    """``len`` that returns the symbolic size of a tensor's first axis."""
    x = x.tensor if isinstance(x, Listed) else x
    return x.shape[0] if isinstance(x, Tensor) else len(x)


def _chosen(function: Callable[..., Any], symbolic: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``min`` or ``max`` that keeps a symbol of symbolic ints."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_number, args))
        is_of_sizes = len(args) > 1 and any(isinstance(arg, torch.SymInt) for arg in args)
        if not is_of_sizes or kwargs or not all(isinstance(arg, int | torch.SymInt) for arg in args):
            return function(*args, **kwargs)
        return functools.reduce(symbolic, args)

    return choose


class _Math(ModuleType):
    """The module ``math``, with a square root and logarithms that keep symbolic numbers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def sqrt(x: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, _SYMBOLS) else math.sqrt(x)

    @staticmethod
    def log(x: Any, *base: Any) -> Any:
        return _logarithm(x) / math.log(*(base or (math.e,))) if isinstance(x, _SYMBOLS) else math.log(x, *base)

    @staticmethod
    def log2(x: Any) -> Any:
        return _logarithm(x) / math.log(2) if isinstance(x, _SYMBOLS) else math.log2(x)

    @staticmethod
    def log10(x: Any) -> Any:
        return _logarithm(x) / math.log(10) if isinstance(x, _SYMBOLS) else math.log10(x)


class _Numpy(ModuleType):
    """The module ``numpy``, with roundings, a square root and logarithms that keep symbolic numbers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def log(x: Any, *args: Any, **kwargs: Any) -> Any:
        return _Math.log(x) if isinstance(x, _SYMBOLS) else np.log(x, *args, **kwargs)

    @staticmethod
    def ceil(x: Any, *args: Any, **kwargs: Any) -> Any:
        return math.ceil(x) if isinstance(x, _SYMBOLS) else np.ceil(x, *args, **kwargs)

    @staticmethod
    def floor(x: Any, *args: Any, **kwargs: Any) -> Any:
        return math.floor(x) if isinstance(x, _SYMBOLS) else np.floor(x, *args, **kwargs)

    @staticmethod
    def sqrt(x: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.sym_sqrt(x) if isinstance(x, _SYMBOLS) else np.sqrt(x, *args, **kwargs)


def _logarithm(x: Any) -> Tensor:
    """The natural logarithm of a size, as a tensor: PyTorch has no such symbols. Its type promotes no other."""
    return torch.scalar_tensor(x, dtype=torch.float64).log()


def _check(*_: Any, **__: Any) -> None:
    """Replaces ``transformers.utils.torch_compilable_check``, which has no operator in a graph."""


class _StackedSizes(TorchFunctionMode):
    """``torch.tensor`` and ``torch.as_tensor`` of nested lists of sizes, and ``torch.linspace`` of sizes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and args and _has_symbol(args[0]):
            return _stacked(args[0], (kwargs or {}).get("dtype"))
        if (numbers := _counted(func, args)) is not None:
            return torch.arange(numbers.start, numbers.stop, numbers.step, **_of_data(func, args, kwargs or {}))
        if func is torch.linspace and (_has_symbol(args) or isinstance(args[1], Tensor)):
            return _spaced(*args, **(kwargs or {}))
        if (parts := splits.parts(func, args, kwargs or {})) is not None:
            return parts
        if func in (torch.chunk, Tensor.chunk) and len(args) > 1 and isinstance(args[1], torch.SymInt):
            return _chunks(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _counted(func: Any, args: Sequence[Any]) -> "_Range | None":
    """The numbers that a call makes a tensor of, ``torch.tensor(range(length))``; None for other calls."""
    data = args[-1] if args and func in (torch.tensor, torch.as_tensor, Tensor.new_tensor) else None
    return data if isinstance(data, _Range) else None


def _of_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The element type and the device of a tensor that a call makes of numbers."""
    like = {"dtype": args[0].dtype, "device": args[0].device} if func is Tensor.new_tensor else {"dtype": torch.int64}
    return like | {name: value for name, value in kwargs.items() if name in like and value is not None}


def _chunks(x: Tensor, chunks: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """``x.chunk(chunks)`` for as many parts as there are at the traced size."""
    count = next(number for number in itertools.count(1) if chunks <= number)  # an equality would fix a size
    size = (x.shape[dim] + count - 1) // count
    starts = [number * size for number in range(count)]
    return tuple(x.narrow(dim, start, _least(size, x.shape[dim] - start)) for start in starts)


def _spaced(start: float, end: Any, steps: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """``torch.linspace``, which makes numbers of its arguments."""
    dtype = dtype or torch.get_default_dtype()
    first, last, gaps = (_stacked(value, dtype) for value in (start, end, steps - 1))
    return first + torch.arange(steps, dtype=dtype) * ((last - first) / gaps.clamp(min=1))


def _has_symbol(data: Any) -> bool:
    return any(map(_has_symbol, data)) if isinstance(data, list | tuple) else isinstance(data, _SYMBOLS)


def _stacked(data: Any, dtype: torch.dtype | None) -> Tensor:
    if isinstance(data, Tensor):
        return data.to(dtype or data.dtype)
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(item, dtype) for item in data])
    default = torch.get_default_dtype() if isinstance(data, float | torch.SymFloat) else torch.int64
    return torch.scalar_tensor(data, dtype=dtype or default)


_least = _chosen(min, torch.sym_min)
_BUILTIN = {
    "int": _SymbolicInt,
    "len": _len,
    "range": _SymbolicRange,
    "min": _least,
    "max": _chosen(max, torch.sym_max),
}
_IMPORTED = {"torch_int": _torch_int, "torch_compilable_check": _check}


@contextmanager
def with_symbolic_ints(model: nn.Module, chosen: Callable[[str], bool], *, helpers: bool = False) -> Iterator[None]:
    """Keeps sizes symbolic in the files that define classes of submodules of ``model``, those of ``chosen`` names.

    ``helpers``: and in the files of the functions that these import.
    """
    names = {name for name in {type(module).__module__ for module in model.modules()} if _is_loaded(name, chosen)}
    with ONE_AT_A_TIME, _StackedSizes(), ExitStack() as undo:
        for name in sorted(_with_helpers(names, chosen) if helpers else names):
            scope = vars(sys.modules[name])
            for key, value in (_BUILTIN | _IMPORTED).items():
                if key in scope or key in _BUILTIN:
                    undo.callback(_restore, scope, key, scope.get(key))
                    scope[key] = value
            for key, module, symbolic in (("math", math, _Math), ("np", np, _Numpy), ("numpy", np, _Numpy)):
                if scope.get(key) is module:
                    undo.callback(_restore, scope, key, module)
                    scope[key] = symbolic(key)
            einx = sys.modules.get("einx")
            if scope.get("einx") is einx and einx is not None:
                undo.callback(_restore, scope, "einx", einx)
                scope["einx"] = SymbolicEinx(einx)
        yield


def _is_loaded(name: str, chosen: Callable[[str], bool]) -> bool:
    return name in sys.modules and chosen(name)


def _with_helpers(names: set[str], chosen: Callable[[str], bool]) -> set[str]:
    """``names``, and those of the modules of functions in their scopes, and in the scopes of these."""
    found, left = set(names), set(names)
    while left:
        functions = [value for value in vars(sys.modules[left.pop()]).values() if isinstance(value, FunctionType)]
        new = {function.__module__ for function in functions if _is_loaded(function.__module__ or "", chosen)} - found
        found, left = found | new, left | new
    return found


def _restore(scope: dict[str, Any], key: str, before: Any) -> None:
    if before is None:
        del scope[key]
    else:
        scope[key] = before

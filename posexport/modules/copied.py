"""Copies of a user's module.

``copy.deepcopy`` copies no closure, and raises an exception at tensors with a history of gradients and at objects such
as locks, staticmethods and modules of Python. Such objects are shared: they hold no tensors, and where they count
calls, repeated calls show it.
"""

import copy
import operator
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

from torch import Tensor, nn

from posexport.base.system.user_code import is_external, raised
from posexport.errors import PosexportError
from posexport.modules.lazy_copies import share_until_written

_M = TypeVar("_M", bound=nn.Module)
_T = TypeVar("_T")
#: objects that are made anew for every copy would be endless
_MOST_SHARED = 256
_TWO_PRECISIONS = "the proof needs copies of it in two precisions"


def copied(argument: str, module: _M, why: str = _TWO_PRECISIONS) -> _M:
    """A copy of a user's module.

    Raises:
        PosexportError: it cannot be copied; ``why`` says what the copy is for.
    """
    memo: dict[int, Any] = {}
    with copying(argument, why):
        return with_copied_closures(deep_copied(module, memo), memo)


@contextmanager
def copying(argument: str, why: str = _TWO_PRECISIONS) -> Iterator[None]:
    """Errors of `deep_copied` inside the block as one sentence."""
    try:
        yield
    except Exception as err:
        if is_external(err) or isinstance(err, PosexportError):
            raise
        part = _refused(err)
        if isinstance(part, Tensor) and type(part) is not Tensor:
            raise PosexportError(
                f"{argument}: a weight is a {_class(part)}, which copy.deepcopy cannot copy, and {why}; convert the "
                "module before its weights are quantized, and the graph gets them so by precision="
            ) from err
        raise PosexportError(
            f"{argument}: the module cannot be copied, and {why}: copy.deepcopy raised {raised(err)}"
        ) from err


def deep_copied(value: _T, memo: dict[int, Any]) -> _T:
    """``copy.deepcopy`` with ``memo``; objects that it cannot copy are shared, tensors with a history are detached."""
    if isinstance(value, nn.Module):
        share_until_written(value, memo)
    known, most = dict(memo), len(memo) + _MOST_SHARED
    while True:
        try:
            return copy.deepcopy(value, memo)
        except Exception as err:
            part = _refused(err)
            if isinstance(part, nn.Module) or _has_state(part) or len(known) == most or is_external(err):
                raise
            known[id(part)] = part.detach().clone() if isinstance(part, Tensor) else part
            # without what is copied halfway
            memo.clear()
            memo.update(known)


def _refused(err: BaseException) -> Any:
    """The object that the innermost call of ``copy.deepcopy`` was to copy; None where it called none."""
    frames = [frame for frame, _ in traceback.walk_tb(err.__traceback__) if frame.f_code is copy.deepcopy.__code__]
    return frames[-1].f_locals["x"] if frames else None


def _class(tensor: Tensor) -> str:
    return next(kind.__name__ for kind in type(tensor).__mro__ if kind is not nn.Parameter)


def _has_state(value: Any) -> bool:
    """Whether an object holds tensors or submodules, which copies in two precisions cannot share."""
    return any(isinstance(held, Tensor | nn.Module) for held in getattr(value, "__dict__", {}).values())


def with_copied_closures(module: _M, memo: dict[int, Any]) -> _M:
    """``module``, a copy, with closures over copies: ``copy.deepcopy`` copies no function.

    ``self.feed = lambda x: proj(x)`` would otherwise call the submodule of the original, and so would a hook.
    """
    for submodule in module.modules():
        held = vars(submodule)
        # of a class in a function, which closes over submodules
        forward = getattr(type(submodule), "forward", None)
        if "forward" not in held and isinstance(forward, FunctionType):
            same = _with_copied_cells(forward, memo)
            if same is not forward:
                held["forward"] = MethodType(same, submodule)
        for values in (held, *(value for value in held.values() if isinstance(value, dict))):
            for name, value in list(values.items()):
                if (same := _with_copied_closure(value, memo)) is not value:
                    values[name] = same
    return module


def _with_copied_closure(value: Any, memo: dict[int, Any]) -> Any:
    function = value.__func__ if isinstance(value, staticmethod | MethodType) else value
    if not isinstance(function, FunctionType):
        return value
    same = _with_copied_cells(function, memo)
    if same is function:
        return value
    if isinstance(value, MethodType):
        return MethodType(same, value.__self__)
    return staticmethod(same) if isinstance(value, staticmethod) else same


def _with_copied_cells(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """``function``, closed over the copies in ``memo``, as are functions that it calls; itself where there are none."""
    if id(function) in memo:
        return memo[id(function)]  # type: ignore[no-any-return]
    memo[id(function)] = function  # which may close over itself
    try:
        values = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # what it closes over has no value yet
        return function
    copies = [_copied_value(value, memo) for value in values]
    if all(map(operator.is_, values, copies)):
        return function
    cells = tuple(map(CellType, copies))
    same = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    same.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = same
    return same


def _copied_value(value: Any, memo: dict[int, Any]) -> Any:
    """The copy of what a function closes over, or of the modules of a list."""
    if isinstance(value, FunctionType):
        return _with_copied_cells(value, memo)
    if type(value) in (list, tuple) and any(isinstance(each, nn.Module) for each in value):
        return type(value)(memo.get(id(each), each) for each in value)
    return memo.get(id(value), value)

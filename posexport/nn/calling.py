"""Values that a call carries in addition to its arguments, one of each class, for functions that it reaches.

The forward of a user or of another library calls layer by layer, and its arguments are fixed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")

_CARRIED: ContextVar[Mapping[type, Any]] = ContextVar("posexport_call", default=MappingProxyType({}))


@contextmanager
def carrying(value: T, kind: type[T]) -> Iterator[T]:
    """Inside the block, calls carry ``value``, which `carried` finds by ``kind``."""
    token = _CARRIED.set({**_CARRIED.get(), kind: value})
    try:
        yield value
    finally:
        _CARRIED.reset(token)


def carried(kind: type[T]) -> T | None:
    """The value of this kind; None outside of its block."""
    value: T | None = _CARRIED.get().get(kind)
    return value

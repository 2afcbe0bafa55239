"""What a call carries beside its arguments, for functions of posexport that it reaches: one value of each class.

Users' and other libraries' forwards have arguments of their own, and call layer by layer.
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

"""Which mode a module of the user's is called in: `Recognised`, or one that was chosen around the call."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from posexport.modules.recognise.mode import Recognised

_CHOSEN: ContextVar[Recognised | None] = ContextVar("posexport_recognised", default=None)


@contextmanager
def chosen(mode: Recognised) -> Iterator[None]:
    """Inside the block, modules of the user's are called in ``mode``, while they are traced and otherwise."""
    token = _CHOSEN.set(mode)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def traced() -> Recognised:
    """The mode of a call that is traced."""
    return _CHOSEN.get() or Recognised()


def called() -> AbstractContextManager[object]:
    """The mode of a call in PyTorch: none, where none was chosen."""
    return _CHOSEN.get() or nullcontext()

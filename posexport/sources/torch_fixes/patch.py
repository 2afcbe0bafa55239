"""Replaces an attribute of PyTorch for the duration of a block: the only place where posexport assigns to one.

Attributes are the process's. The lock that is held here keeps other threads of posexport from computing meanwhile, and
from restoring what this one replaced (`posexport.base.system.one_at_a_time`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets ``owner.name`` to ``value`` inside the block; afterwards it is what it was before."""
    with ONE_AT_A_TIME:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

"""Tables that a package's file keeps of the calls of its modules: a dict by length, a function with an lru_cache.

A trace, and a call of shapes alone, leave tensors there that hold no values, and no later call works. A table of the
longest call so far makes the lengths of a trace a special case.
Reason: a trace is meant for modules that keep nothing of a call. Seen in 2.13.
"""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

#: packages whose modules keep nothing there
_OURS = ("torch", "posexport")
#: of functions with an ``lru_cache``: an object may have attributes of every name (fastcore's ``_``)
_Cached = type(functools.cache(int))


@contextmanager
def with_tables_kept(module: nn.Module) -> Iterator[None]:
    """Dicts of tensors in the files of the classes of ``module`` are after the block what they were before it."""
    before = [(table, dict(table)) for table in _values(module) if _is_table(table)]
    try:
        yield
    finally:
        for table, contents in before:
            if [*map(id, table.values())] != [*map(id, contents.values())]:
                table.clear()
                table.update(contents)


@contextmanager
def without_cached_results(module: nn.Module) -> Iterator[None]:
    """As `with_tables_kept`; functions of these files with an ``lru_cache`` forget what they returned in the block."""
    cached = [value for value in _values(module) if type(value) is _Cached]
    before = [function.cache_info() for function in cached]
    try:
        with with_tables_kept(module):
            yield
    finally:
        for function, info in zip(cached, before, strict=True):
            if function.cache_info().misses != info.misses:
                function.cache_clear()


def _values(module: nn.Module) -> Iterator[Any]:
    """What the files of the classes define, and these classes."""
    classes = {type(part) for part in module.modules() if type(part).__module__.split(".")[0] not in _OURS}
    for file in {each.__module__ for each in classes}:
        yield from list(vars(sys.modules[file]).values()) if file in sys.modules else ()
    for each in classes:
        yield from list(vars(each).values())


def _is_table(value: Any) -> bool:
    return type(value) is dict and all(isinstance(each, Tensor) for each in value.values())

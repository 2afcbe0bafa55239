"""Tables by dtype in a package's files that have no entry for float64: ``LARGE_VALUES[logits.dtype]``.

A module is written for the dtypes that it is deployed in, and the reference is computed in float64.
Reason: such a table is Python's, of which PyTorch knows nothing. Seen in 2.13.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn


@contextmanager
def with_wide_entries(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Inside the block, of a call in ``dtype`` float64, these tables have float32's entry for float64 too.

    Tables in the files of the classes of ``module``, and in files of their packages that these import.
    """
    tables = list(_tables(module)) if dtype == torch.float64 else []
    for table in tables:
        table[torch.float64] = table[torch.float32]
    try:
        yield
    finally:
        for table in tables:
            del table[torch.float64]


def _tables(module: nn.Module) -> Iterator[dict[Any, Any]]:
    files = {name for name in {type(part).__module__ for part in module.modules()} if not name.startswith("torch.")}
    scopes = {name: vars(sys.modules[name]) for name in files if name in sys.modules}
    for name, scope in list(scopes.items()):
        package = name.split(".")[0]
        imported = [value for value in scope.values() if isinstance(value, ModuleType)]
        scopes |= {each.__name__: vars(each) for each in imported if each.__name__.split(".")[0] == package}
    found = {id(value): value for scope in scopes.values() for value in list(scope.values()) if type(value) is dict}
    yield from (table for table in found.values() if torch.float32 in table and torch.float64 not in table)

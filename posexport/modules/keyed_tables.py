"""Sizes that are keys of tables in a module: ``self.tables[length]``.

A trace finds none of them (`posexport.sources.torch_fixes.size_keys`) and computes the table, as for any other size. A
table that was made otherwise shows at that size alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from torch import Tensor, nn

from posexport.base.spec import LengthContract

#: attributes of every module, as dicts of parameters and hooks
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
#: the longest sequence, and how many of the longest, that a proof takes up
_LONGEST, _MOST = 4096, 4


def with_lengths_of_tables(limits: LengthContract, module: nn.Module) -> LengthContract:
    """``limits`` with the sizes that are keys, alone or in tuples, of dicts with tensors: a proof has these lengths."""
    sizes = {
        size
        for submodule in module.modules()
        for name, value in vars(submodule).items()
        if name not in _OF_EVERY_MODULE and isinstance(value, Mapping)
        for size in _keys(value)
    }
    longest = sorted(sizes)[-_MOST:]
    return msgspec.structs.replace(limits, boundaries=sorted({*limits.boundaries, *longest}))


def _keys(tables: Mapping[Any, Any]) -> Iterator[int]:
    for key, table in tables.items():
        tensors = table if isinstance(table, list | tuple) else (table,)
        if any(isinstance(tensor, Tensor) for tensor in tensors):
            numbers = key if isinstance(key, tuple) else (key,)
            yield from (number for number in numbers if type(number) is int and 1 < number <= _LONGEST)

"""Sizes as keys of tables in a trace: ``if n not in self.tables``, a function with ``functools.lru_cache``.

A symbolic size has no hash, so that PyTorch traces no module that keeps a table for each length. Inside the block it
has one in a user's files, of the symbol in its trace: it equals no key of another call, and the graph computes
the table. einops looks sizes up as well, and computes without its cache.

Issue: none known. Seen in 2.13.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from posexport.base.system.user_code import is_user_file
from posexport.sources.torch_fixes.patch import patched


@contextmanager
def with_size_keys() -> Iterator[None]:
    """Inside the block a user's code may look sizes up."""
    hashed: Callable[[torch.SymInt], int] = torch.SymInt.__hash__

    def hash_of(self: torch.SymInt) -> int:
        if self.node.is_nested_int() or not is_user_file(sys._getframe(1).f_code.co_filename):  # noqa: SLF001
            return hashed(self)
        size = self.node.expr
        return hash(int(size)) if size.is_number else hash((id(self.node.shape_env), size))

    with patched(torch.SymInt, "__hash__", hash_of):
        yield

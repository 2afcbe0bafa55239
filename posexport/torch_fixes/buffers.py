"""Buffers that a module registers in its forward, as tables of the longest input so far.

A trace registers its own tensors there, which hold no values: the exporter writes one as a weight, and no later call
or copy of the module works. Not reported to PyTorch. Seen in 2.13.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def with_buffers_kept(module: nn.Module) -> Iterator[None]:
    """The buffers of ``module`` are after the block what they were before it."""
    before = [(part, dict(part._buffers), set(part._non_persistent_buffers_set)) for part in module.modules()]  # noqa: SLF001
    try:
        yield
    finally:
        for part, buffers, not_saved in before:
            part._buffers, part._non_persistent_buffers_set = buffers, not_saved  # noqa: SLF001

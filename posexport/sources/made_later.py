"""Parameters whose numbers are made from the checkpoint each time they are asked for.

A conversion needs the shapes of a large model's weights while it traces, and each weight's numbers once, when it writes
them. In float32 the weights of a checkpoint in 16 bits take twice its size, in memory or in a temporary file, so they
are made one at a time. Until `make_all` has made them the memory of such a parameter is zeros that take no room: only
what knows of them, by `made` or `by_address`, may read their numbers.
"""

import mmap
import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from posexport.sources import memory_mapped

_MAKE = "_posexport_make"


def later(shape: Sequence[int], make: Callable[[], Tensor]) -> nn.Parameter | None:
    """A float32 parameter of ``shape``, the numbers of which ``make`` returns in new memory.

    None on systems other than Linux, and with settings of it, that count memory which was never used.
    """
    dtype, count = memory_mapped.DTYPE, prod(shape)
    if not sys.platform.startswith("linux"):
        return None
    try:
        # each has its own addresses: two parameters at one address are one weight to PyTorch's exporter
        unused = mmap.mmap(-1, dtype.itemsize * count, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    empty = torch.frombuffer(unused, dtype=dtype, count=count).reshape(tuple(shape))
    parameter = nn.Parameter(empty, requires_grad=False)
    setattr(parameter, _MAKE, make)
    return parameter


def is_made(parameter: nn.Parameter) -> bool:
    """Whether a parameter's memory has its numbers."""
    return not hasattr(parameter, _MAKE)


def made(parameter: nn.Parameter) -> Tensor:
    """A parameter's numbers: its own memory, or new memory."""
    make: Callable[[], Tensor] | None = getattr(parameter, _MAKE, None)
    return parameter.detach() if make is None else make()


def by_address(parameters: Iterable[nn.Parameter]) -> dict[int, nn.Parameter]:
    """The parameters whose numbers are still to be made, by where their memory begins."""
    return {parameter.data_ptr(): parameter for parameter in parameters if not is_made(parameter)}


def make_all(parameters: Iterable[nn.Parameter]) -> None:
    """Give all parameters their numbers, in pages of a temporary file where the disk has room.

    Raises:
        PosexportError: neither the disk nor the memory has.
    """
    found = list(by_address(parameters).values())
    if not found:
        return
    with memory_mapped.Scratch(memory_mapped.size_of(found)) as scratch:
        for parameter in found:
            memory_mapped.put(parameter, scratch.keep(made(parameter)))
            delattr(parameter, _MAKE)
    memory_mapped.trim()

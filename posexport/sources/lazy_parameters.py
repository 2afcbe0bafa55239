"""Parameters that read their values from the checkpoint on access.

A conversion needs the shapes of a large model's weights while it traces, and the values of each weight once, when it
writes the file. In float32 the weights of a checkpoint in 16 bits take twice its size, in memory or in a temporary
file, so each is read, converted and released in turn. The storage of a lazy parameter is reserved and never written: it
reads as zeros. Only code that calls `values` or `materialize` may use it.
"""

import mmap
import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from posexport.sources import memory_mapped

_READ = "_posexport_read"


def lazy(shape: Sequence[int], read: Callable[[], Tensor]) -> nn.Parameter | None:
    """A float32 parameter of ``shape``; ``read`` returns its values in a new tensor.

    None where reserved memory counts as used: on systems other than Linux, and without overcommit.
    """
    dtype, count = memory_mapped.DTYPE, prod(shape)
    if not sys.platform.startswith("linux"):
        return None
    try:
        # a mapping for each: two parameters at one address are one weight to PyTorch's exporter
        reserved = mmap.mmap(-1, dtype.itemsize * count, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    storage = torch.frombuffer(reserved, dtype=dtype, count=count).reshape(tuple(shape))
    parameter = nn.Parameter(storage, requires_grad=False)
    setattr(parameter, _READ, read)
    return parameter


def is_lazy(parameter: nn.Parameter) -> bool:
    """Whether the values of a parameter are not in its storage."""
    return hasattr(parameter, _READ)


def values(parameter: nn.Parameter) -> Tensor:
    """The values of any parameter: its data, or a new tensor if it is lazy."""
    read: Callable[[], Tensor] | None = getattr(parameter, _READ, None)
    return parameter.detach() if read is None else read()


def materialize(parameters: Iterable[nn.Parameter]) -> None:
    """Read the values of all lazy parameters into a temporary file where the disk has room, else into memory.

    Raises:
        PosexportError: neither has room.
    """
    unread = [parameter for parameter in dict.fromkeys(parameters) if is_lazy(parameter)]
    if not unread:
        return
    with memory_mapped.Scratch(memory_mapped.size_of(unread)) as scratch:
        for parameter in unread:
            memory_mapped.put(parameter, scratch.keep(values(parameter)))
            delattr(parameter, _READ)
    memory_mapped.trim()

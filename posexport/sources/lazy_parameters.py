"""Parameters that read their values from the checkpoint on access.

A conversion needs the shapes of a large model's weights while it traces, and the values of each weight once, when it
writes the file. In float32 the weights of a checkpoint in 16 bits take twice its size, in memory or in a temporary
file, so each is read, converted and released in turn. The storage of a lazy parameter is reserved and never written: it
reads as zeros. Only code that calls `values`, `with_values`, `narrow` or `materialize` may use it.

The proof of a large model reads each weight a few times: `narrow` gives lazy parameters the 16 bits of the checkpoint,
which its readers cast (`posexport.proof.references.precision_copy`, `numbers`).
"""

import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from posexport.base.system.freed_memory import trim
from posexport.base.system.machine import available
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.sources import memory_mapped

_READ, _PAGES = "_posexport_read", "_posexport_in_file"
#: types that float32 has all numbers of
_NARROW = (torch.bfloat16, torch.float16)
#: of the available memory: what the values of a few calls may take, which are then in no file
_SHARE = 0.25


def lazy(
    shape: Sequence[int], read: Callable[[], Tensor] | None, pages: nn.Parameter | None = None
) -> nn.Parameter | None:
    """A float32 parameter of ``shape``; ``read`` returns its values in a new tensor; None: ``pages`` have them.

    ``pages``: a mapped tensor of 16 bits with the same numbers.

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
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            reserved.madvise(mmap.MADV_HUGEPAGE)  # a call with zeros reads one of them, not all small ones in turn
    storage = torch.frombuffer(reserved, dtype=dtype, count=count).reshape(tuple(shape))
    parameter = nn.Parameter(storage, requires_grad=False)
    setattr(parameter, _READ, read)
    setattr(parameter, _PAGES, pages)
    return parameter


def is_lazy(parameter: nn.Parameter) -> bool:
    """Whether the values of a parameter are not in its storage."""
    return hasattr(parameter, _READ)


def in_file(parameter: nn.Parameter) -> nn.Parameter | None:
    """A mapped tensor of 16 bits with the numbers of a lazy parameter; None where there is none."""
    pages: nn.Parameter | None = getattr(parameter, _PAGES, None)
    return pages


def values(parameter: Tensor) -> Tensor:
    """The values of any parameter: its data, or a new tensor if it is lazy."""
    return _read(parameter) if hasattr(parameter, _READ) else parameter.detach()


def first_values(parameter: Tensor, rows: int) -> Tensor:
    """The first ``rows`` of `values`."""
    return _read(parameter, rows) if hasattr(parameter, _READ) else parameter.detach()[:rows]


def _read(parameter: Tensor, rows: int | None = None) -> Tensor:
    """The first ``rows`` of the values of a lazy parameter in a new tensor, or all."""
    pages: nn.Parameter | None = getattr(parameter, _PAGES)
    if pages is None:
        read: Callable[[], Tensor] = getattr(parameter, _READ)
        return read()[:rows]
    short = pages.detach()[:rows]
    wide = torch.from_numpy(np.empty(short.shape, MODEL_DTYPE.numpy)).copy_(short)  # NumPy asks for huge pages
    memory_mapped.release([pages])
    return wide


def numbers(parameter: Tensor) -> NDArray[Any]:
    """Those in the storage of a parameter, in its own type, which may be 16 bits (`narrow`)."""
    tensor = parameter.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


@contextmanager
def with_values(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside the block lazy parameters have their values; after it they are lazy again, and the values are gone.

    They are in memory, or where they take much of it in a temporary file.

    Raises:
        PosexportError: neither has room.
    """
    unread = [parameter for parameter in dict.fromkeys(parameters) if is_lazy(parameter)]
    reserved = [parameter.data for parameter in unread]
    size = sum(memory_mapped.DTYPE.itemsize * each.numel() for each in unread)
    try:
        with memory_mapped.Scratch(size if size > _SHARE * available() else None) as scratch:
            for parameter in unread:
                memory_mapped.put(parameter, scratch.keep(values(parameter)))
        yield
    finally:
        for parameter, storage in zip(unread, reserved, strict=True):
            if is_lazy(parameter):  # nobody materialized it in the block
                memory_mapped.put(parameter, nn.Parameter(storage, requires_grad=False))
        trim()


def narrow(parameters: Iterable[nn.Parameter]) -> None:
    """Let all lazy parameters have their values in 16 bits: pages of the checkpoint, which take no memory.

    Those that are computed from the checkpoint's are written to a temporary file, where the disk has room, in 16 bits
    if these hold them. All stay lazy: `values` and `materialize` read float32.

    Raises:
        PosexportError: neither disk nor memory has room.
    """
    unread = [parameter for parameter in dict.fromkeys(parameters) if is_lazy(parameter)]
    computed = [parameter for parameter in unread if in_file(parameter) is None]
    with memory_mapped.Scratch(memory_mapped.size_of(computed) if computed else None) as scratch:
        for parameter in unread:
            pages = in_file(parameter)
            memory_mapped.put(parameter, scratch.keep(_narrowed(values(parameter))) if pages is None else pages)
    trim()


def _narrowed(value: Tensor) -> Tensor:
    """``value`` in 16 bits, or itself where these do not hold it."""
    every = (value.to(dtype) for dtype in _NARROW)
    return next((short for short in every if torch.equal(short.to(value.dtype), value)), value)


def materialize(parameters: Iterable[nn.Parameter]) -> None:
    """Read the values of all lazy parameters into a temporary file where the disk has room, else into memory.

    Raises:
        PosexportError: neither has room.
    """
    unread = [parameter for parameter in dict.fromkeys(parameters) if is_lazy(parameter)]
    if not unread:
        return
    with memory_mapped.Scratch(sum(memory_mapped.DTYPE.itemsize * each.numel() for each in unread)) as scratch:
        for parameter in unread:
            memory_mapped.put(parameter, scratch.keep(values(parameter)))
            delattr(parameter, _READ)
            delattr(parameter, _PAGES)
    trim()

"""Large weights as pages of a file: they take memory while they are read, and give it back on request.

A mapped parameter is an ordinary tensor. Changing it in place changes this process's pages and never the file; the
pages of one that was changed are kept.
"""

import contextlib
import copy
import functools
import mmap
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from posexport.base.system.freed_memory import trim
from posexport.base.system.machine import available, readable
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.errors import PosexportError

#: modules with more bytes of weights than this are shared where small ones are copied, and mapped after their class
#: has read them
LARGE = 1 << 28
#: from so many bytes on a checkpoint is mapped, and in a proof read one weight at a time
SHARED = 1 << 26
#: parameters of fewer bytes are kept in memory
LEAST = 1 << 20
#: of the tensors that are mapped
DTYPE = MODEL_DTYPE.torch
_M = TypeVar("_M", bound=nn.Module)
_PAGES = "_posexport_pages"


@dataclass(frozen=True)
class _Pages:
    """Where a parameter's numbers are: bytes ``start`` to ``end``. ``version``: PyTorch's count of changes in place."""

    map: mmap.mmap
    start: int
    end: int
    version: int


def size_of(parameters: Iterable[nn.Parameter]) -> int:
    """The number of bytes that ``parameters`` take."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def release(parameters: Iterable[nn.Parameter]) -> None:
    """Give the memory of mapped parameters back. Whoever reads one again gets the same numbers, read from the file."""
    advise = getattr(mmap, "MADV_DONTNEED", None)
    for parameter in parameters:
        pages: _Pages | None = getattr(parameter, _PAGES, None)
        # the counter of writes that autograd's checks read; it has no public name
        if pages is None or advise is None or parameter._version != pages.version:  # noqa: SLF001
            continue
        # whole pages only: those at the ends are the neighbours' too
        start = -(-pages.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = pages.end // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            pages.map.madvise(advise, start, end - start)


def release_array(array: NDArray[Any]) -> None:
    """Give the memory of an array back that is a view of a file's pages; of another one nothing."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    pages = base.obj if isinstance(base, memoryview) else base
    advise = getattr(mmap, "MADV_DONTNEED", None)
    if isinstance(pages, mmap.mmap) and advise is not None:
        pages.madvise(advise)


def copy_with_same_weights(module: _M) -> _M:
    """A copy with new structure, attributes and buffers, which shares its parameters with ``module``."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})


def drop(parameters: Iterable[nn.Parameter]) -> None:
    """Give the memory of all parameters back, for good: their numbers are gone."""
    for parameter in parameters:
        parameter.data = parameter.data.new_empty(0)


def view(pages: mmap.mmap, start: int, shape: Sequence[int], dtype: torch.dtype = DTYPE) -> nn.Parameter | None:
    """The numbers of ``shape`` from byte ``start`` on; None where no number of ``dtype`` can begin there."""
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    if start % dtype.itemsize or not count:
        return None
    flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=start)
    parameter = nn.Parameter(flat.reshape(list(shape)), requires_grad=False)
    setattr(parameter, _PAGES, _Pages(pages, start, start + dtype.itemsize * count, parameter._version))  # noqa: SLF001
    return parameter


def open_map(file: IO[bytes], length: int = 0, offset: int = 0) -> mmap.mmap:
    """A file's bytes (all of them, or ``length`` from a page on); writes to them stay in this process."""
    return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=offset)


def _on_disk(size: int) -> bool:
    """Whether ``size`` bytes of weights go to the disk of temporary files rather than to memory."""
    folder, free = Path(tempfile.gettempdir()), 0
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
    if free > 3 * size:  # the exported weights may go to the same disk, and another copy while they are proven
        return True
    memory = available()
    if memory > 2 * size:
        return False
    if free > 1.2 * size:
        return True
    if memory > 1.2 * size:
        return False
    raise PosexportError(
        f"the weights take {readable(size)} in float32; there are {readable(memory)} of memory and {readable(free)} "
        f"left on the disk of temporary files ({folder}): make room there, or set TMPDIR to a folder of a larger disk"
    )


class Scratch:
    """Keeps parameters that no file holds in their final form, in an unnamed temporary file. A context manager.

    ``size``: the bytes that they take; None: they stay in memory, as they do where the disk of temporary files lacks
    room and memory does not.

    Raises:
        PosexportError: neither has room.
    """

    def __init__(self, size: int | None) -> None:
        self._file: IO[bytes] | None = None
        if size is not None and _on_disk(size):
            with contextlib.suppress(OSError):
                self._file = tempfile.TemporaryFile(prefix="posexport-")  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()  # its pages stay open, and with them what it holds

    def keep(self, value: Tensor) -> nn.Parameter:
        """A parameter with the numbers of ``value``, in its type."""
        if self._file is None or value.nbytes < LEAST:
            return nn.Parameter(value, requires_grad=False)
        try:
            offset = -(-self._file.seek(0, 2) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._file.seek(offset)
            self._file.write(value.contiguous().view(-1).view(torch.uint8).numpy().data)
            self._file.flush()
            parameter = view(open_map(self._file, value.nbytes, offset), 0, value.shape, value.dtype)
        except OSError:  # the disk is full after all
            parameter = None
        return nn.Parameter(value, requires_grad=False) if parameter is None else parameter


def move(parameters: Iterable[nn.Parameter]) -> None:
    """Move float32 parameters, the same objects, to pages of a `Scratch` if they are `LARGE` and the disk has room."""
    found = [each for each in parameters if each.dtype == DTYPE and not hasattr(each, _PAGES)]
    if (size := size_of(found)) <= LARGE:
        return
    with contextlib.suppress(PosexportError), Scratch(size) as scratch:
        for parameter in found:
            put(parameter, scratch.keep(parameter.detach()))
    trim()


def put(parameter: nn.Parameter, kept: nn.Parameter) -> None:
    """Give ``parameter``, the same object, the numbers of ``kept``, which a `Scratch` keeps."""
    parameter.data = kept.data
    pages: _Pages | None = getattr(kept, _PAGES, None)
    if pages is not None:
        setattr(parameter, _PAGES, replace(pages, version=parameter._version))  # noqa: SLF001
        release([parameter])

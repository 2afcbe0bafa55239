"""The definition run by PyTorch in another precision: a copy that shares the original's parameters.

A parameter is cast when a module of the copy reads it, and released when that module has returned, so that proving a
large model takes the memory of one more layer, not three times the model's. The values equal a whole copy's, bit for
bit: casting float32 to float64 adds nothing, and casting once more gives the same.

Products of float16 matrices are computed in float32 and rounded: PyTorch's CPU kernels do the same, 20 times slower.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.base.system.freed_memory import trim, trim_grown
from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.base.system.threads import allowed_threads
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.errors import PosexportError
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds
from posexport.proof.subjects.runner import OF_BATCHES, ROOM, Remembered
from posexport.sources import memory_mapped
from posexport.sources.torch_fixes.convolutions import ConvolutionsInParts
from posexport.sources.torch_fixes.module_precision import in_precision

_aten = torch.ops.aten
#: in inference mode products of several steps arrive as they were called
_PRODUCTS = {
    _aten.linear.default,
    _aten.matmul.default,
    _aten.conv1d.default,
    _aten.conv2d.default,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.addmm.default,
    _aten.baddbmm.default,
    _aten.mv.default,
    _aten.dot.default,
    _aten.convolution.default,
}


class WideProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the block, products of float16 tensors are computed in float32 and rounded."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Part of the protocol of PyTorch's dispatch modes."""
        del types
        if func not in _PRODUCTS or not any(_half(value) for value in args):
            return func(*args, **(kwargs or {}))
        return func(*(value.float() if _half(value) else value for value in args), **(kwargs or {})).half()


def _half(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16


class Replaced(Protocol):
    """Whether other numbers are read in place of a parameter's, by products or by lookups."""

    def __call__(self, parameter: nn.Parameter, /, *, lookup: bool) -> bool: ...


#: bytes that are cast at a time, and those of a weight above which its product is computed in such pieces
_PIECE, _WHOLE = 1 << 24, 1 << 27
#: the attribute of a cast copy that is the parameter it was cast from
ORIGIN = "_posexport_origin"


class Reader:
    """Casts parameters to ``dtype`` on access. Of memory-mapped ones only the last keeps its pages in memory.

    ``replaced``: whether every product or lookup with a parameter reads other numbers in its place, so that none of
    its own are cast.
    """

    def __init__(self, dtype: torch.dtype, replaced: "Replaced | None" = None) -> None:
        self.dtype = dtype
        self._replaced = replaced or (lambda *_, **__: False)
        self._last: nn.Parameter | None = None

    def rows(self, table: nn.Parameter, ids: Tensor) -> Tensor:
        """The rows of an embedding table, cast: a vocabulary is much larger than a batch."""
        if self._replaced(table, lookup=True):
            return nn.functional.embedding(ids, self._stand_in(table))
        return nn.functional.embedding(ids, table).to(self.dtype)

    def linear(self, weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor) -> Tensor:
        """A linear layer with its weight cast in chunks of rows: the head has the largest weight of a model."""
        offset = None if bias is None else self.read(bias)
        if self._replaced(weight, lookup=False):
            return nn.functional.linear(x, self._stand_in(weight), offset)
        columns, start = [], 0
        for rows in _pieces(weight):
            # in half precision the sum with the bias is rounded once
            some = None if offset is None else offset[start : start + len(rows)]
            columns.append(nn.functional.linear(x, rows.to(self.dtype), some))
            start += len(rows)
        return torch.cat(columns, -1)

    def _stand_in(self, parameter: nn.Parameter) -> nn.Parameter:
        """Of the shape and type of the cast copy, and NaN where it is read after all."""
        nan = torch.full((), torch.nan, dtype=self.dtype).expand(parameter.shape)
        return self._of(parameter, nn.Parameter(nan, requires_grad=False))

    @staticmethod
    def _of(parameter: nn.Parameter, cast: nn.Parameter) -> nn.Parameter:
        setattr(cast, ORIGIN, parameter)
        return cast

    def read(self, parameter: nn.Parameter) -> nn.Parameter:
        """``parameter`` itself, or its cast copy."""
        if _real(parameter) and self._replaced(parameter, lookup=False):
            return self._stand_in(parameter)
        if parameter is not self._last and _bytes(parameter) >= memory_mapped.LEAST:
            self.release()
            self._last = parameter
        if parameter.dtype == self.dtype or not _real(parameter):
            return parameter
        return self._of(parameter, nn.Parameter(_cast(parameter, self.dtype), requires_grad=False))

    def release(self) -> None:
        """Give the pages of the last one back."""
        if self._last is not None:
            memory_mapped.release([self._last])
        self._last = None


def _bytes(parameter: nn.Parameter) -> int:
    """Of at least 4 for a number, so that pieces, and with them roundings of products, are those of float32."""
    return parameter.numel() * max(parameter.element_size(), MODEL_DTYPE.torch.itemsize)


def _pieces(parameter: nn.Parameter) -> Iterator[Tensor]:
    """Rows of ``parameter``, `_PIECE` bytes at a time."""
    rows = max(1, parameter.shape[0] * _PIECE // _bytes(parameter))
    for start in range(0, parameter.shape[0], rows):
        yield parameter.detach()[start : start + rows]
        memory_mapped.release([parameter])


def _cast(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """``parameter`` in ``dtype``, page by page."""
    if _bytes(parameter) <= _PIECE:
        return parameter.detach().to(dtype)
    cast, start = torch.empty_like(parameter, dtype=dtype), 0
    for rows in _pieces(parameter):
        cast[start : start + len(rows)] = rows
        start += len(rows)
    return cast


class _Parameters(MutableMapping[str, nn.Parameter | None]):
    """The dictionary of parameters of a module of the copy."""

    def __init__(self, shared: dict[str, nn.Parameter | None], reader: Reader) -> None:
        self.shared, self._reader = shared, reader

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = self.shared[name]
        return None if parameter is None else self._reader.read(parameter)

    def __setitem__(self, name: str, value: nn.Parameter | None) -> None:
        self.shared[name] = value

    def __delitem__(self, name: str) -> None:
        del self.shared[name]

    def __contains__(self, name: object) -> bool:
        return name in self.shared

    def __iter__(self) -> Iterator[str]:
        return iter(self.shared)

    def __len__(self) -> int:
        return len(self.shared)


def sharing(module: nn.Module, reader: Reader) -> nn.Module:
    """A copy with separate buffers and attributes; ``reader`` returns the original's parameters, cast."""
    copy = memory_mapped.copy_with_same_weights(module).eval()
    for submodule in copy.modules():
        # PyTorch's ways do not fit: parametrize.register_parametrization writes to the parameter (``set_``), which is
        # the original's, so that `memory_mapped.release` takes it for changed and keeps its pages; functional_call
        # wants all parameters cast immediately
        parameters = dict(submodule.__dict__["_parameters"])
        submodule.__dict__["_parameters"] = _Parameters(parameters, reader)
        if type(submodule) is nn.Embedding and submodule.max_norm is None:
            submodule.forward = partial(reader.rows, parameters["weight"])  # type: ignore[method-assign]
        elif type(submodule) is nn.Linear and _bytes(parameters["weight"]) > _WHOLE:
            submodule.forward = partial(reader.linear, parameters["weight"], parameters["bias"])  # type: ignore[method-assign]
        for name, buffer in submodule.__dict__["_buffers"].items():
            if buffer is not None and _real(buffer):
                submodule.__dict__["_buffers"][name] = buffer.to(reader.dtype)
    return copy


def shareable(module: nn.Module) -> bool:
    """Whether every parameter is read where it is registered.

    Parameters that are also in a list (as in recurrent layers) would be read there without being cast.
    """
    # the storage's id: its address would make a copy of one that is shared until it is written to
    storages = {parameter.untyped_storage()._cdata for parameter in module.parameters() if parameter.numel()}  # noqa: SLF001
    for submodule in module.modules():
        if isinstance(submodule, torch.jit.ScriptModule):
            return False
        held = [value for name, value in vars(submodule).items() if name not in ("_parameters", "_modules")]
        if any(tensor.untyped_storage()._cdata in storages for tensor in _tensors(held)):  # noqa: SLF001
            return False
    return True


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in a Python container."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _tensors(item)


def _real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_T = TypeVar("_T")


class PrecisionCopy:
    """A copy of ``module`` in one precision. ``fresh``: a new one for every call, for modules that keep state.

    ``device``: PyTorch's name of where it computes.

    The copy of a module above `memory_mapped.SHARED` bytes, and any with ``share``, reads the original's parameters
    one at a time (`posexport.proof.references.precision_copy`).
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        *,
        outputs: int,
        fresh: bool = False,
        device: str = "cpu",
        share: bool = False,
    ) -> None:
        self.original = module
        self.device = torch.device(device)
        self.dtype = dtype
        self.outputs = outputs
        shares = share or memory_mapped.size_of(module.parameters()) > memory_mapped.SHARED
        shares = shares and self.device.type == "cpu" and shareable(module)
        self.reader = Reader(dtype, getattr(module, "replaced", None)) if shares else None
        self.copy = None if fresh else self._copied()

    def _copied(self) -> nn.Module:
        if self.reader is not None:
            module = sharing(self.original, self.reader)
        else:
            module = in_precision(copy.deepcopy(self.original), self.dtype).eval().to(self.device)
        for submodule in getattr(module, "reused", ()):
            # of a copy by posexport; hooks see a call and cannot skip it, and a module around the part would
            # not be the one that its definition asks for inputs and encodings
            submodule.forward = Remembered(submodule.forward, OF_BATCHES)
        for owner, name in getattr(module, "reused_calls", ()):
            setattr(owner, name, Remembered(getattr(owner, name), OF_BATCHES, ROOM))
        return module

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs as NumPy arrays (half precision widened to float32)."""
        outputs = self.asked(lambda module: module(**self.tensors(feeds)))
        if not isinstance(outputs, tuple) or len(outputs) != self.outputs:
            got = f"a tuple of {len(outputs)}" if isinstance(outputs, tuple) else type(outputs).__name__
            raise PosexportError(f"the module returned {got}; a tuple of {self.outputs} was declared by its outputs")
        return [_numpy(tensor) for tensor in outputs]

    def asked(self, call: Callable[[nn.Module], _T]) -> _T:
        """What ``call`` makes of the copy, computed as its outputs are."""
        module = self._copied() if self.copy is None else self.copy
        # what it makes without a device is there too; on the CPU it is anyway
        makes_there = nullcontext() if self.device.type == "cpu" else self.device
        with makes_there, torch.inference_mode(), _products(self.dtype):
            answer = call(module)
        if self.reader is not None:
            self.reader.release()
            trim()
        else:
            trim_grown()
        return answer

    def tensors(self, feeds: Feeds) -> dict[str, torch.Tensor]:
        """Feeds as tensors, real numbers in the copy's precision."""
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in feeds.items()}
        return {name: t.to(self.dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def fingerprint(outputs: Sequence[Array]) -> str:
    """Equal only for outputs that are equal in every bit."""
    digest = hashlib.sha256()
    for array in outputs:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """PyTorch on ``threads`` threads (0: no more than are allowed here) inside the block."""
    with ONE_AT_A_TIME:  # the number is the process's
        before = torch.get_num_threads()
        torch.set_num_threads(threads or min(before, allowed_threads()))
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _products(dtype: torch.dtype) -> AbstractContextManager[object]:
    """How products of ``dtype`` are computed."""
    if dtype == torch.float64:
        return ConvolutionsInParts()  # type: ignore[no-untyped-call]
    return WideProducts() if dtype == torch.float16 else nullcontext()  # type: ignore[no-untyped-call]


def _numpy(tensor: torch.Tensor) -> Array:
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    array: Array = wide.detach().cpu().numpy()
    return array

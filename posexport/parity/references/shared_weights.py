"""Copies of large modules that share the original's parameters: proving them needs one layer more memory, not thrice.

A parameter is cast when a part of the copy reads it, and forgotten when that part has done its work. The numbers are
those of a whole copy, bit for bit: casting float32 to float64 adds nothing, and casting once more gives the same.
"""

from collections.abc import Iterator, MutableMapping

import torch
from torch import Tensor, nn

from posexport.sources import mapped

#: bytes that are cast at a time
_PIECE = 1 << 24
#: the attribute of a cast copy that is the parameter it was cast from
ORIGIN = "_posexport_origin"


class Reader:
    """Parameters in ``dtype``, as they are asked for. Of mapped ones only the last keeps its pages in memory."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._last: nn.Parameter | None = None

    def read(self, parameter: nn.Parameter) -> nn.Parameter:
        """``parameter`` itself, or its cast copy."""
        if parameter is not self._last and parameter.numel() * parameter.element_size() >= mapped.LEAST:
            self.release()
            self._last = parameter
        if parameter.dtype == self.dtype or not _real(parameter):
            return parameter
        cast = nn.Parameter(_cast(parameter, self.dtype), requires_grad=False)
        setattr(cast, ORIGIN, parameter)
        return cast

    def release(self) -> None:
        """Give the pages of the last one back."""
        if self._last is not None:
            mapped.release([self._last])
        self._last = None


def _cast(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """``parameter`` in ``dtype``, without all of its pages in memory at once."""
    size = parameter.numel() * parameter.element_size()
    if size <= _PIECE:
        return parameter.detach().to(dtype)
    rows = max(1, parameter.shape[0] * _PIECE // size)
    cast = torch.empty_like(parameter, dtype=dtype)
    for start in range(0, parameter.shape[0], rows):
        cast[start : start + rows] = parameter.detach()[start : start + rows]
        mapped.release([parameter])
    return cast


class _Parameters(MutableMapping[str, nn.Parameter | None]):
    """What a module of the copy has in place of its dictionary of parameters."""

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
    """A copy with buffers and attributes of its own; wherever it reads a parameter, ``reader`` gives the original's."""
    copy = mapped.copy_with_same_weights(module).eval()
    for part in copy.modules():
        # PyTorch's ways do not fit: parametrize.register_parametrization writes to the parameter (``set_``), which is
        # the original's, so that `mapped.release` takes it for changed and keeps its pages; functional_call wants all
        # parameters cast at once
        part.__dict__["_parameters"] = _Parameters(dict(part.__dict__["_parameters"]), reader)
        for name, buffer in part.__dict__["_buffers"].items():
            if buffer is not None and _real(buffer):
                part.__dict__["_buffers"][name] = buffer.to(reader.dtype)
    return copy


def shareable(module: nn.Module) -> bool:
    """Whether every parameter is read where it is registered.

    One that stands in a list beside that (recurrent layers have such) would be read there without being cast.
    """
    storages = {parameter.untyped_storage().data_ptr() for parameter in module.parameters() if parameter.numel()}
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            return False
        held = [value for name, value in vars(part).items() if name not in ("_parameters", "_modules")]
        if any(tensor.untyped_storage().data_ptr() in storages for tensor in _tensors(held)):
            return False
    return True


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in a container of Python's own."""
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

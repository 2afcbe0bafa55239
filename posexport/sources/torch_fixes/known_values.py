"""The values of a module's buffers in a trace: ``joints[self.parents[i]]``, ``x[:, self.is_number]``.

PyTorch's tracer makes placeholders of buffers, so that a number of one is a symbol that no list takes, and a mask as
index gives an unknown number of elements. A graph has buffers as constants: inside the mode what is computed of small
ones alone is computed with their values too, which Python gets where it asks for a number or a truth value; a mask as
index is the indices of its elements.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

#: elements of a buffer, and of what is computed of it, whose values are known: larger ones are tables
_MOST = 4096
#: functions that make tensors, of which numbers are known
_MADE = ("zeros", "ones", "full", "tensor", "as_tensor", "scalar_tensor")
#: functions that give Python values
_OF_VALUES = ("item", "tolist", "numpy", "__int__", "__index__", "__bool__", "__float__")
#: functions that look like those in place, and are not
_NOT_IN_PLACE = ("__index__", "__int__", "__invert__", "__iter__")
#: functions whose results have as many elements as there are values of a kind
_OF_NUMBERS = ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select")


def small_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the small tensors of ``module`` by their paths, also those of no buffer; of parameters the numbers."""
    return {
        path: value.detach().clone()
        for path, value in _tensors(module)
        if type(value) in (Tensor, nn.Parameter)
        and value.numel() <= (1 if isinstance(value, nn.Parameter) else _MOST)
        and value.layout is torch.strided
        and not value.is_meta
    }


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, part in module.named_modules():
        for name, value in (vars(part) | vars(part)["_buffers"] | vars(part)["_parameters"]).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}", value


class KnownValues(TorchFunctionMode):
    """A trace of ``module`` in which its buffers have the ``values`` of `small_buffers`."""

    def __init__(self, module: nn.Module, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        # tensors by identity, which stay alive with it; a call may change the copies of values
        with _outside_trace():
            self._known = {
                id(tensor): (tensor, values[path].clone()) for path, tensor in _tensors(module) if path in values
            }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__
        if not self._known:
            return func(*args, **kwargs)
        first = self._of(args[0]) if args else None
        if _is_in_place(name) or "out" in kwargs:
            if first is not None:
                self._changed(func, args, kwargs)
            args = self._with_indices(args) if name == "__setitem__" else args
            return func(*args, **kwargs)
        if name in _OF_VALUES and first is not None:
            with _outside_trace():
                return func(first, *args[1:], **kwargs)
        values = self._computed(func, args, kwargs)
        if name in _OF_NUMBERS and isinstance(values, Tensor):
            result = _constant(values)
        else:
            result = func(*(self._with_indices(args) if name == "__getitem__" else args), **kwargs)
        for tensor, value in zip(tree_leaves(result), tree_leaves(values), strict=False):
            if isinstance(tensor, Tensor) and isinstance(value, Tensor) and value.numel() <= _MOST:
                self._known[id(tensor)] = tensor, value
        return result

    def _of(self, value: Any) -> Tensor | None:
        return self._known[id(value)][1] if isinstance(value, Tensor) and id(value) in self._known else None

    def _computed(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result with the values, where all tensors are known; None otherwise."""
        real = self._real(args, kwargs)
        is_made = func.__name__ in _MADE
        if real is None or not (is_made or any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs)))):
            return None
        with _outside_trace():
            values = func(*real[0], **real[1])
        return None if is_made and values.dim() else values

    def _changed(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Changes values in place, and with them those of views."""
        real = self._real(args, kwargs)
        if real is None:
            self._known.clear()
            return
        with _outside_trace():
            func(*real[0], **real[1])

    def _real(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The arguments with the values of their tensors; None where one is not known."""
        leaves = tree_leaves((args, kwargs))
        # slices, and shapes by `posexport.sources.torch_fixes.shapes`, are no nodes of a tree
        numbers = [end for leaf in leaves if isinstance(leaf, slice) for end in (leaf.start, leaf.stop, leaf.step)]
        numbers += [size for leaf in leaves if isinstance(leaf, tuple) for size in leaf]
        symbols = torch.SymInt | torch.SymFloat | torch.SymBool
        is_symbolic = any(isinstance(number, symbols) for number in (*leaves, *numbers))
        if is_symbolic or any(isinstance(leaf, Tensor) and self._of(leaf) is None for leaf in leaves):
            return None
        real: tuple[Any, Any] = tree_map_only(Tensor, self._of, (tuple(args), dict(kwargs)))
        return real

    def _with_indices(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments of ``x[index]`` with the indices of the elements in the place of a known mask."""
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any((mask := self._of(index)) is not None and mask.dtype == torch.bool for index in indices):
            return args
        found: list[Any] = []
        for index in indices:
            mask = self._of(index)
            if mask is None or mask.dtype != torch.bool:
                found.append(index)
            else:
                with _outside_trace():
                    places = mask.nonzero(as_tuple=True)
                found += map(_constant, places)
        return (args[0], tuple(found), *args[2:])


def _constant(values: Tensor) -> Tensor:
    """A tensor of a trace with ``values``."""
    with _outside_trace():
        numbers = values.tolist()
    return torch.tensor(numbers, dtype=values.dtype).reshape(values.shape)


@contextmanager
def _outside_trace() -> Iterator[None]:
    """Inside the block PyTorch computes with values."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001 (no public names)
        yield


def _is_in_place(name: str) -> bool:
    """Whether a function changes its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    if name.startswith("__") and name.endswith("__"):
        return name.startswith(("__i", "__set")) and name not in _NOT_IN_PLACE
    return name.endswith("_")

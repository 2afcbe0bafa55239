"""Loads a class of transformers without reading the large tensors of its checkpoint.

``from_pretrained`` casts every weight to float32 in memory, which takes twice the size of a checkpoint in 16 bits. Here
it gets tensors of the same shapes that are reserved and never written, renames and splits them as its class wants, and
the parameters that it makes of them read the checkpoint on access (`posexport.sources.lazy_parameters`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.weights import Weights
from posexport.sources import lazy_parameters, memory_mapped

#: a model and what transformers says of its loading, from a state dict
Load = Callable[[dict[str, Tensor]], tuple[Any, dict[str, Any]]]


def load(checkpoint: Checkpoint, from_state: Load) -> tuple[Any, dict[str, Any]] | None:
    """What ``from_state`` returns, with lazy parameters.

    None where they would take the place of weights that are computed or changed while the class loads them (experts
    that are stacked, a padding row), that are not mapped, or that an adapter changes afterwards.
    """
    weights = checkpoint.weights
    if checkpoint.adapter is not None or checkpoint.adapters or checkpoint.stored_rows is not None:
        return None
    if sum(map(_elements, weights.shapes.values())) * memory_mapped.DTYPE.itemsize <= memory_mapped.LARGE:
        return None
    unread: dict[str, nn.Parameter] = {}
    state: dict[str, Tensor] = {}
    for name, dtype in weights.dtypes.items():
        if dtype is None:
            return None
        pages = weights.as_pages(name)
        if pages is None and dtype.is_floating_point and _elements(weights.shapes[name]) >= memory_mapped.LEAST:
            return None  # a pickle
        if pages is None or pages.dtype == torch.float64:
            state[name] = weights.read(name, integers=True)
            if state[name].is_floating_point():
                state[name] = state[name].to(memory_mapped.DTYPE)
            continue
        same = pages.dtype == memory_mapped.DTYPE
        parameter = pages if same else lazy_parameters.lazy(weights.shapes[name], None, pages)
        if parameter is None:
            return None
        unread[name], state[name] = parameter, parameter.detach()
    with _Writes({parameter.untyped_storage().data_ptr() for parameter in unread.values()}) as writes:
        model, loading = from_state(state)
    return (
        (model, loading) if not writes.seen and _replace(model, unread, weights, loading["unexpected_keys"]) else None
    )


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anything inside the block writes to ``storages``, as classes do that set a padding row."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages, self.seen = storages, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        targets = args[:1] if func._schema.is_mutable else ()  # noqa: SLF001 (it has no public name)
        tensors = (x for x in targets if isinstance(x, Tensor) and not x.is_meta)
        self.seen |= any(x.untyped_storage().data_ptr() in self.storages for x in tensors)
        return func(*args, **(kwargs or {}))


def _elements(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())


def _replace(model: nn.Module, unread: dict[str, nn.Parameter], weights: Weights, unexpected: set[str]) -> bool:
    """Give ``model`` the lazy parameters ``unread``, and views of them; whether each is there, whole, or not needed."""
    name_at = {parameter.untyped_storage().data_ptr(): name for name, parameter in unread.items()}
    left = {name: parameter.numel() for name, parameter in unread.items() if lazy_parameters.is_lazy(parameter)}
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            name = name_at.get(parameter.untyped_storage().data_ptr())
            if name is None:
                continue
            if id(parameter) not in replaced:
                lazy = _in_place_of(parameter, unread[name])
                if lazy is None:
                    return False
                replaced[id(parameter)] = lazy
                left[name] = left.get(name, 0) - parameter.numel()
            setattr(module, leaf, replaced[id(parameter)])
    missed = [name for name, elements in left.items() if elements > 0 and name not in unexpected]
    whole = [name for name, elements in left.items() if elements <= 0]
    return all(left[name] == unread[name].numel() and _is_twice(name, whole, weights) for name in missed)


def _in_place_of(view: nn.Parameter, whole: nn.Parameter) -> nn.Parameter | None:
    """The parameter in place of ``view``, which is ``whole`` or a view of it."""
    if view.shape == whole.shape and view.is_contiguous():
        return whole
    if not lazy_parameters.is_lazy(whole):
        return view
    size, stride, offset = view.shape, view.stride(), view.storage_offset()
    return lazy_parameters.lazy(size, lambda: _strided(whole, size, stride, offset))


def _strided(whole: nn.Parameter, *strides: Any) -> Tensor:
    return lazy_parameters.values(whole).as_strided(*strides).clone(memory_format=torch.contiguous_format)


def _is_twice(name: str, others: list[str], weights: Weights) -> bool:
    """Whether a tensor, which the model ties to another, has the numbers of one of ``others``."""
    same = (other for other in others if weights.shapes[other] == weights.shapes[name])
    return any(torch.equal(weights.read(other), weights.read(name)) for other in same)

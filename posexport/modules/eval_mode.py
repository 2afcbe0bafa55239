"""Puts a user's module into eval mode, float32 and the CPU, or says in one sentence why it cannot be."""

from types import new_class
from typing import Any

import torch
from torch import Tensor, nn

from posexport.base.system.user_code import is_external, raised
from posexport.errors import PosexportError

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


def in_eval_mode(argument: str, module: nn.Module) -> nn.Module:
    """``module`` itself, changed in place.

    Raises:
        PosexportError: weights are missing or quantized, a submodule is TorchScript, or ``eval()`` changes a tensor.
    """
    _check(argument, module)
    _register(module)
    # before the comparison below: float() replaces the tensors that it casts
    module.float()
    module.cpu()
    _eval(argument, module)
    before = _tensors(module)
    _eval(argument, module)  # again, as for every copy
    after = _tensors(module)
    changed = [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]
    if changed:
        raise PosexportError(
            f"{argument}: every call of eval() makes or changes {changed[0]}; do that once, before the module is "
            "returned, so that train() and eval() only set a mode"
        )
    return module


def _check(argument: str, module: nn.Module) -> None:
    """PosexportError for what can be seen without a call."""
    has_forward = getattr(module.forward, "__name__", "") != "_forward_unimplemented"
    if not has_forward and type(module).__call__ is nn.Module.__call__:
        raise PosexportError(f"{argument}: {type(module).__name__} has no forward; return a module that can be called")
    for path, submodule in module.named_modules():
        if isinstance(submodule, torch.jit.ScriptModule):
            what = f"its submodule {path}" if path else "it"
            raise PosexportError(f"{argument}: {what} is TorchScript; return the module that it was made from")
        if type(submodule).__module__.startswith("torch.ao.nn.quantized"):
            raise _quantized(argument, path or type(submodule).__name__)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise PosexportError(
                f"{argument}: {name} is on the device meta, which holds no values; load the weights, or make the "
                "module on the CPU"
            )
        if tensor.dtype in _QUANTIZED:
            raise _quantized(argument, name)


def _register(module: nn.Module) -> None:
    """Makes buffers of tensors that are only attributes, so that they are cast, moved and traced with the module."""
    for submodule in module.modules():
        cls = type(submodule)
        tensors = {
            name: value
            for scope in [*map(vars, reversed(cls.__mro__)), vars(submodule)]
            for name, value in scope.items()
            if isinstance(value, Tensor) and name not in submodule._buffers  # noqa: SLF001
        }
        hidden = {name: _BufferFirst(name, getattr(cls, name)) for name in tensors if hasattr(cls, name)}
        if hidden:
            submodule.__class__ = _subclass(cls, hidden)
        for name, tensor in tensors.items():
            vars(submodule).pop(name, None)
            # register_buffer() refuses the name of a class's attribute
            submodule._buffers[name] = tensor  # noqa: SLF001
            submodule._non_persistent_buffers_set.add(name)  # noqa: SLF001


def _subclass(cls: type, attributes: dict[str, Any]) -> type:
    """A class that looks like ``cls`` and has further attributes, as PyTorch's parametrizations make."""
    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, **attributes}
    return new_class(cls.__name__, (cls,), exec_body=lambda scope: scope.update(attributes))


class _BufferFirst:
    """An attribute of a class that a buffer of the same name comes before, as an attribute of an instance would."""

    def __init__(self, name: str, of_class: Any) -> None:
        self.name, self.of_class = name, of_class

    def __get__(self, module: nn.Module | None, _: type) -> Any:
        return self.of_class if module is None else module._buffers.get(self.name, self.of_class)  # noqa: SLF001


def _quantized(argument: str, name: str) -> PosexportError:
    return PosexportError(
        f"{argument}: {name} is quantized; return the module as it was before, and quantize with --precision int8"
    )


def _eval(argument: str, module: nn.Module) -> None:
    try:
        module.eval()
    except BaseException as err:
        if is_external(err):
            raise
        raise PosexportError(f"{argument}: the module raised {raised(err)} in eval(), and is converted so") from err


def _tensors(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Every parameter and buffer, with PyTorch's count of changes in place."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: (tensor, 0 if tensor.is_inference() else tensor._version) for name, tensor in named}  # noqa: SLF001


def _same(one: tuple[Tensor, int] | None, two: tuple[Tensor, int] | None) -> bool:
    return one is not None and two is not None and one[0] is two[0] and one[1] == two[1]

"""The example call of ``torch.onnx.export`` as flat, named tensors: ``args``, ``kwargs`` and ``input_names``."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posexport.errors import PosexportError


@dataclass(frozen=True)
class Leaf:
    """A tensor of the example: its name in the file, its parameter and path in the call, its index among all leaves."""

    name: str
    parameter: str
    path: tuple[Any, ...]
    place: int
    tensor: Tensor


@dataclass(frozen=True)
class ExampleCall:
    """A call of a module as a flattened pytree: ``leaves`` are its tensors, ``constants`` has its other leaves.

    ``arguments``: positional, then keyword arguments, with the names of forward's parameters.
    """

    leaves: list[Leaf]
    constants: list[Any]
    tree: pytree.TreeSpec
    arguments: list[tuple[str, Any]]

    def __deepcopy__(self, _memo: dict[int, Any]) -> "ExampleCall":
        """The call is immutable, so a copied module shares it."""
        return self

    def filled(self, tensors: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with ``tensors``, by the names of the leaves."""
        values = list(self.constants)
        for leaf in self.leaves:
            values[leaf.place] = tensors[leaf.name]
        args, kwargs = pytree.tree_unflatten(values, self.tree)
        return args, kwargs


def example_call(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, input_names: Any) -> ExampleCall:
    """The call that ``args`` and ``kwargs`` describe, as ``torch.onnx.export`` reads them.

    A dict at the end of ``args`` holds keyword arguments where ``kwargs`` is empty. Keyword arguments follow the
    positional ones, in the order of forward's parameters.

    Raises:
        PosexportError: forward does not take them, none is a tensor, or names do not fit.
    """
    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    if not kwargs and args and isinstance(args[-1], dict):
        args, kwargs = args[:-1], args[-1]
    kwargs = dict(kwargs or {})
    label = type(module).__name__
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as err:
        raise PosexportError(f"{label}: forward does not take the example in args and kwargs: {err}") from err
    kwargs = {name: kwargs[name] for name in sorted(kwargs, key=_order(bound.signature))}
    arguments = [*zip(_positional_names(bound.signature, len(args)), args, strict=True), *kwargs.items()]
    flat, tree = pytree.tree_flatten((args, kwargs))
    leaves = list(_leaves(label, arguments))
    names = _names(label, [_default_name(leaf) for leaf in leaves], input_names)
    leaves = [
        Leaf(name, leaf.parameter, leaf.path, leaf.place, leaf.tensor.detach().cpu())
        for leaf, name in zip(leaves, names, strict=True)
    ]
    return ExampleCall(leaves, [None if isinstance(x, Tensor) else x for x in flat], tree, arguments)


def _order(signature: inspect.Signature) -> Any:
    places = {name: place for place, name in enumerate(signature.parameters)}
    return lambda name: places.get(name, len(places))


def _positional_names(signature: inspect.Signature, count: int) -> list[str]:
    """Names of positional arguments; in ``*args`` they are numbered."""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        else:
            names.append(parameter.name)
    return names[:count]


def _leaves(label: str, arguments: Sequence[tuple[str, Any]]) -> Any:
    """The tensors of the arguments, in pytree's order."""
    place = 0
    for parameter, value in arguments:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, Tensor):
                _check(label, parameter, leaf)
                yield Leaf("", parameter, path, place, leaf)
            elif leaf is not None and not isinstance(leaf, int | float | bool | str | torch.dtype | torch.device):
                raise PosexportError(
                    f"{label}: argument {parameter} holds {type(leaf).__name__}; give tensors, numbers and None, in "
                    "tuples, lists and dicts"
                )
            place += 1


def _check(label: str, parameter: str, tensor: Tensor) -> None:
    """Raise PosexportError for a tensor that is neither float32 nor of integers, or has no elements."""
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype != torch.float32):
        raise PosexportError(
            f"{label}: the example's {parameter} is {tensor.dtype}; convert the module in float32, with model.float() "
            "and .float() of the example"
        )
    if not tensor.numel():
        raise PosexportError(
            f"{label}: the example's {parameter} has no elements, shape {list(tensor.shape)}; give every axis a size"
        )


def _default_name(leaf: Leaf) -> str:
    """The name that ``torch.export`` gives an input: the parameter, then the keys of the path."""
    keys = [re.sub(r"\W", "", str(key)) for key in leaf.path]
    return "_".join([leaf.parameter, *keys])


def _names(label: str, default: list[str], input_names: Any) -> list[str]:
    """``input_names`` for the first tensors, default names for the others."""
    if isinstance(input_names, str):
        raise PosexportError(f"input_names must be a list of names, got {input_names!r}")
    chosen = [str(name) for name in input_names or ()]
    if len(chosen) > len(default):
        raise PosexportError(
            f"{label}: {len(chosen)} input_names for {len(default)} tensors in the example "
            f"({', '.join(default) or 'none'}); what is no tensor is fixed in the file and has no name"
        )
    if not default:
        raise PosexportError(f"{label}: the example holds no tensor; give one for every input in args or kwargs")
    names = [*chosen, *default[len(chosen) :]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PosexportError(f"{label}: two inputs are called {twice!r}; give every tensor a name in input_names")
    return names

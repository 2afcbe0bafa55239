"""The user's module with flat tensors by name as inputs and outputs, in place of nested arguments."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posexport.errors import PosexportError
from posexport.serve.drop_in.example import ExampleCall
from posexport.serve.drop_in.type_adapters import InputAdapter


class Wrapped(nn.Module):
    """``module``, called with the tensors of ``call`` by the bundle's names; its outputs are float32 by name.

    Subclasses have the name of the user's class (`wrapped`), which messages and the file show.
    """

    def __init__(
        self, module: nn.Module, call: ExampleCall, adapters: Sequence[InputAdapter], output_names: Sequence[str] | None
    ) -> None:
        super().__init__()
        self.module, self.call, self.adapters, self.output_names = module, call, adapters, output_names

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        outputs = self.outputs(
            {adapter.name: adapter.from_bundle(tensors[adapter.bundle_name]) for adapter in self.adapters}
        )
        names = self.output_names or list(outputs)
        return {name: bundle_output(value) for name, value in zip(names, outputs.values(), strict=True)}

    def outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's outputs by their keys, in their types; ``tensors`` are by the file's names."""
        args, kwargs = self.call.filled(tensors)
        return named_tensors(self.module(*args, **kwargs))


def bundle_output(value: Tensor) -> Tensor:
    """An output of any type as a bundle's output: floating point, and at least one axis."""
    value = value if value.is_floating_point() else value.float()
    return value if value.dim() else value[None]


def wrapped(
    module: nn.Module, call: ExampleCall, adapters: Sequence[InputAdapter], output_names: Sequence[str] | None = None
) -> Wrapped:
    """``module`` as a `Wrapped` with the name of the module's class."""
    subclass = type(type(module).__name__, (Wrapped,), {"__module__": type(module).__module__})
    wrapper: Wrapped = subclass(module, call, adapters, output_names)
    return wrapper.train(module.training)


def named_tensors(output: Any) -> dict[str, Tensor]:
    """The tensors of a nested output in order, by their keys: ``output``, ``output_0``, ``hidden_1``."""
    tensors: dict[str, Tensor] = {}
    for keys, tensor in _flat(output, ()):
        if not keys or keys[0].isdigit():
            keys = ("output", *keys)
        tensors["_".join(keys)] = tensor
    if not tensors:
        raise PosexportError(f"the module must return tensors, got {type(output).__name__}")
    return tensors


def _flat(output: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Every tensor inside of tuples, lists, mappings and dataclasses, with its keys; None is left out."""
    if isinstance(output, Tensor):
        yield keys, output
    elif output is not None:
        for key, value in _entries(output):
            yield from _flat(value, (*keys, str(key)))


def _entries(output: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a container, with keys."""
    if isinstance(output, Mapping):
        return output.items()
    if isinstance(output, tuple | list):
        return enumerate(output)
    if dataclasses.is_dataclass(output):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    if not pytree.tree_is_leaf(output):  # classes that are registered with torch, e.g. caches of transformers
        return enumerate(pytree.tree_leaves(output))
    raise PosexportError(
        f"the module must return tensors, in tuples, lists, dicts or dataclasses, got {type(output).__name__}"
    )

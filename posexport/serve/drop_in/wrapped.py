"""The user's module behind flat tensors: what ``torch.onnx.export`` calls with any structure, by names alone."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from posexport.errors import PosexportError
from posexport.serve.drop_in.example import ExampleCall
from posexport.serve.drop_in.ports import InputPort


class Wrapped(nn.Module):
    """``module``, called with the tensors of ``call`` by the bundle's names; its answer as float32 by name.

    Subclasses have the name of the user's class (`wrapped`), which messages and the file tell.
    """

    def __init__(
        self, module: nn.Module, call: ExampleCall, ports: Sequence[InputPort], output_names: Sequence[str] | None
    ) -> None:
        super().__init__()
        self.module, self.call, self.ports, self.output_names = module, call, ports, output_names

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        outputs = self.answer({port.name: port.outward(tensors[port.internal]) for port in self.ports})
        names = self.output_names or list(outputs)
        return {name: bundle_output(value) for name, value in zip(names, outputs.values(), strict=True)}

    def answer(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The user's outputs as they are, by their keys, of tensors by the file's names."""
        args, kwargs = self.call.filled(tensors)
        return named_tensors(self.module(*args, **kwargs))


def bundle_output(value: Tensor) -> Tensor:
    """An output of any type as a bundle has it: real numbers, and at least one axis."""
    value = value if value.is_floating_point() else value.float()
    return value if value.dim() else value[None]


def wrapped(
    module: nn.Module, call: ExampleCall, ports: Sequence[InputPort], output_names: Sequence[str] | None = None
) -> Wrapped:
    """``module`` as a `Wrapped` whose class is called like its own."""
    kind = type(type(module).__name__, (Wrapped,), {"__module__": type(module).__module__})
    made: Wrapped = kind(module, call, ports, output_names)
    return made.train(module.training)


def named_tensors(answer: Any) -> dict[str, Tensor]:
    """The tensors of an answer in their order, by the keys to them: ``output``, ``output_0``, ``hidden_1``."""
    found: dict[str, Tensor] = {}
    for keys, tensor in _flat(answer, ()):
        if not keys or keys[0].isdigit():
            keys = ("output", *keys)
        found["_".join(keys)] = tensor
    if not found:
        raise PosexportError(f"the module must return tensors, got {type(answer).__name__}")
    return found


def _flat(answer: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Every tensor inside of tuples, lists, mappings and dataclasses; None is left out."""
    if isinstance(answer, Tensor):
        yield keys, answer
    elif answer is not None:
        for key, value in _entries(answer):
            yield from _flat(value, (*keys, str(key)))


def _entries(answer: Any) -> Iterable[tuple[Any, Any]]:
    """What an answer that is no tensor holds, with keys."""
    if isinstance(answer, Mapping):
        return answer.items()
    if isinstance(answer, tuple | list):
        return enumerate(answer)
    if dataclasses.is_dataclass(answer):
        return [(field.name, getattr(answer, field.name)) for field in dataclasses.fields(answer)]
    if not pytree.tree_is_leaf(answer):  # classes that are registered with torch, such as caches of transformers
        return enumerate(pytree.tree_leaves(answer))
    raise PosexportError(
        f"the module must return tensors, in tuples, lists, dicts or dataclasses, got {type(answer).__name__}"
    )

"""What a user's module returns, as tensors by name."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from posexport.errors import PosexportError

_CACHE_IS_OURS = (
    "; a model of transformers alone, without an example, gets a KV cache of posexport's; in a module that calls one, "
    "set its config.use_cache = False"
)


def named_outputs(output: Any) -> dict[str, Tensor]:
    """The output of a module as tensors by name: nested containers are flattened, ``None`` is left out.

    The tensors in ``{"layers": (x, y)}`` are called ``layers.0`` and ``layers.1``, a lone tensor ``output``, the
    tensors of a tuple ``output_0`` and ``output_1``.
    """
    if isinstance(output, Tensor):
        return {"output": output}
    outputs: dict[str, Tensor] = {}
    prefix = "output_" if isinstance(output, tuple | list) and not hasattr(output, "_fields") else ""
    for path, value in _leaves(output, ""):
        name = prefix + path
        if not isinstance(value, Tensor):
            raise PosexportError(
                "the module must return tensors, alone or in tuples, dicts, dataclasses and objects, "
                f"got {type(value).__name__}{f' as {name}' if path else ''}{_CACHE_IS_OURS if _is_cache(value) else ''}"
            )
        if name in outputs:
            raise PosexportError(f"the module returned two outputs that are both called {name}; rename one")
        outputs[name] = value
    if not outputs:
        raise PosexportError(f"the module must return at least one tensor, got {type(output).__name__} without any")
    return outputs


def names_beside(inputs: Collection[str], outputs: Collection[str]) -> dict[str, str]:
    """The graph's name of each of ``outputs``: ``sample_out`` where an input is called ``sample`` too."""
    names: dict[str, str] = {}
    taken = {*inputs, *outputs}
    for name in outputs:
        free = name
        while free in taken and (free != name or name in inputs):
            free += "_out"
        names[name] = free
        taken.add(free)
    return names


def _leaves(output: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values in nested containers that are no containers, without ``None``, each with its keys joined by dots."""
    items = _items(output)
    if items is None:
        if output is not None or not path:
            yield path, output
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))


def _items(output: Any) -> list[tuple[Any, Any]] | None:
    """Keys and values of a container; None for anything else.

    Of an object that is no declared container, as torch.distributions has, its public attributes with tensors.
    """
    if isinstance(output, Mapping):
        return list(output.items())
    if isinstance(output, tuple | list):
        return list(zip(getattr(output, "_fields", range(len(output))), output, strict=True))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    if declared := getattr(type(output), "__attrs_attrs__", None):
        return [(field.name, getattr(output, field.name)) for field in declared]
    if isinstance(output, Tensor | nn.Module | type) or _is_cache(output):
        return None
    attributes = getattr(output, "__dict__", {})
    return [(key, value) for key, value in attributes.items() if key[0] != "_" and _holds_tensors(value)] or None


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or any(_holds_tensors(inside) for _, inside in _items(value) or ())


def _is_cache(value: Any) -> bool:
    return type(value).__module__ == "transformers.cache_utils"

"""What a module keeps of a call: a table of the longest input so far as a buffer, the length of the last one.

A trace leaves its own tensors there, which hold no values: the exporter writes one as a weight, and no later call or
copy of the module works. A length that an earlier call left makes a trace of this length the special case.
Reason: a trace is meant for modules that keep nothing of a call. Seen in 2.13.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def with_state_kept(module: nn.Module) -> Iterator[None]:
    """The attributes of ``module`` and of its submodules are after the block what they were before it."""
    before = [(vars(part), _contents(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for attributes, contents in before:
            _restore(attributes, contents)


def empty_attributes(module: nn.Module) -> list[tuple[str, str]]:
    """The attributes that are None, by submodule: some modules fill one in their first call, for its length alone."""
    return [
        (path, name) for path, part in module.named_modules() for name, value in vars(part).items() if value is None
    ]


def emptied(module: nn.Module, attributes: list[tuple[str, str]]) -> bool:
    """Whether one of these holds a tensor; they are None again."""
    parts = dict(module.named_modules())
    filled = [(parts[path], name) for path, name in attributes if isinstance(getattr(parts[path], name, None), Tensor)]
    for part, name in filled:
        setattr(part, name, None)
    return bool(filled)


def _contents(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, and a copy of one that is changed in place: of parameters, buffers and caches."""
    kinds = (dict, list, set)
    return {name: (value, copy.copy(value) if type(value) in kinds else None) for name, value in attributes.items()}


def _restore(attributes: dict[str, Any], contents: dict[str, tuple[Any, Any]]) -> None:
    for name in attributes.keys() - contents.keys():
        del attributes[name]
    for name, (value, content) in contents.items():
        attributes[name] = value
        if content is not None:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)

"""RoPE frequencies: those that a configuration asks for, and those of a graph's constants."""

from collections.abc import Iterator, Mapping
from typing import Any


def rope_options(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The options of RoPE, one mapping for each kind of layer.

    transformers 5 has them in ``rope_parameters``, for models with windows by kind of layer; before, ``rope_scaling``
    stood with ``rope_theta``.
    """
    parameters = config.get("rope_parameters")
    if isinstance(parameters, dict):
        by_kind = [value for value in parameters.values() if isinstance(value, dict)]
        nested = bool(by_kind) and all(isinstance(value, dict) or value is None for value in parameters.values())
        yield from by_kind if nested else [parameters]
        return
    scaling = config.get("rope_scaling")
    shared = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    if isinstance(scaling, dict):
        yield {**shared, **scaling}
    elif shared:
        yield shared

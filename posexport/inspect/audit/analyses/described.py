"""The part of a repository's config.json that describes one graph."""

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.reading.folder import Folder

#: keys of a nested configuration of what reads tokens
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")


def described(graph: ir.Graph, roles: Roles, files: Folder) -> Mapping[str, Any]:
    """The configuration of the graph's text model; empty for graphs that take no tokens, and for those of two stacks.

    Encoders and decoders of one model (T5, Whisper) have different sizes under keys that differ by model; nothing is
    said of them.
    """
    tokens = [value for value in roles.ids if value not in roles.positions]
    if not (tokens or roles.past or any("embeds" in (value.name or "") for value in graph.inputs)):
        return {}
    config = files.object("config.json")
    for _ in range(2):  # thinker_config.text_config
        nested = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), None)
        config = config if nested is None else nested
    two_stacks = config.get("is_encoder_decoder") or "decoder" in config or "encoder" in config
    return {} if two_stacks else config


def whole(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first key with a positive integer."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def numeric(config: Mapping[str, Any], *keys: str) -> float | None:
    """The first key with a positive number."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None

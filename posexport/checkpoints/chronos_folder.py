"""Folders of Chronos, whose config.json says transformers' type t5 and another class: what they are taken for."""

from collections.abc import Mapping
from typing import Any

#: posexport's type of Chronos-Bolt
BOLT = "chronos_bolt"
#: type of a folder, by the class in ``architectures``
_TYPES = {"ChronosBoltModelForForecasting": BOLT, "Chronos2Model": "chronos2"}


def with_type(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of a config.json with a type of its own, where it names a class of chronos-forecasting."""
    listed = content.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return {**content, "model_type": _TYPES[first]} if isinstance(first, str) and first in _TYPES else dict(content)


def remarks(label: str, content: Mapping[str, Any]) -> list[str]:
    """A remark on a Chronos of transformers' T5, whose tokenizer of values is code; ``label`` names config.json."""
    if content.get("model_type") != "t5" or "chronos_config" not in content:
        return []
    return [
        f"{label} has a chronos_config: the graphs read and give ids, of which ChronosTokenizer of chronos-forecasting "
        "makes values, and its forecasts are samples of generate"
    ]

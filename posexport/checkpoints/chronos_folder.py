"""Detects Chronos folders: their config.json has transformers' type t5, but a class of chronos-forecasting."""

from collections.abc import Mapping
from typing import Any

#: posexport's type of Chronos-Bolt
BOLT = "chronos_bolt"
#: type of a folder, by the class in ``architectures``
_TYPES = {"ChronosBoltModelForForecasting": BOLT, "Chronos2Model": "chronos2"}


def with_type(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of a config.json, with posexport's ``model_type`` if its class is one of chronos-forecasting."""
    listed = content.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return {**content, "model_type": _TYPES[first]} if isinstance(first, str) and first in _TYPES else dict(content)


def remarks(label: str, content: Mapping[str, Any]) -> list[str]:
    """A remark on a Chronos with transformers' T5: the conversion between values and ids is Python code.

    ``label`` names config.json.
    """
    if content.get("model_type") != "t5" or "chronos_config" not in content:
        return []
    return [
        f"{label} has a chronos_config: the graphs read and give ids, of which ChronosTokenizer of chronos-forecasting "
        "makes values, and its forecasts are samples of generate"
    ]

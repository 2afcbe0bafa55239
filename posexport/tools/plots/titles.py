"""Titles in words: what an encoding is called and what was set, not how Python writes it."""

import inspect
from collections.abc import Collection

from posexport.encodings.encoding import Encoding, Value
from posexport.encodings.rope import Rope

#: settings that read better than their names do; the others are "name value"
_WORDS = {
    "hidden": "{} dimensions",
    "heads": "{} heads",
    "head_size": "{} dimensions a head",
    "max_positions": "{} positions",
    "clip": "clipped at distance {}",
    "buckets": "{} buckets",
    "max_distance": "last bucket from distance {} on",
    "window": "window of {0} \N{MULTIPLICATION SIGN} {0}",
    "rows": "{} rows",
    "columns": "{} columns",
    "base": "base {}",
    "joined": "joined by {}",
    "rotary_dim": "{} dimensions rotated",
    "span": "distances up to {}",
    "beyond": "beyond the table: {}",
    "factor": "factor {}",
}
#: what a checkpoint's title says although it is the default
SIZES = frozenset(_WORDS) - {"joined", "beyond"}


def settings_in_words(layer: Encoding, chosen: Collection[str] = ()) -> str:
    """Its settings: those ``chosen`` by the user, those without a default, those that are not at their default."""
    defaults = {name: p.default for name, p in layer.arguments().items()}
    parts = []
    for name, value in layer.parameters_given.items():
        whole = name == "rotary_dim" and value == layer.parameters_given.get("head_size")
        if value is None or whole or (name not in chosen and value == defaults.get(name, inspect.Parameter.empty)):
            continue
        trained = name == "max_positions" and isinstance(layer, Rope)
        parts.append(f"trained for {value} positions" if trained else _words(name, value))
    return ", ".join(parts)


def _words(name: str, value: Value) -> str:
    plain = name.replace("_", " ")
    if isinstance(value, bool):
        return plain if value else f"not {plain}"
    if isinstance(value, str) and "," in value:
        return f"{plain} of {value.count(',') + 1} numbers"
    written = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, int) and value == 1 and name in ("heads", "rows", "columns"):
        return f"1 {name[:-1]}"
    if name in _WORDS:
        return _WORDS[name].format(written)
    return f"{plain} {written}"

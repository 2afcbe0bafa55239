"""Which pictures fit an encoding, and its settings as a phrase for a title."""

import inspect
from collections.abc import Callable, Collection

from posexport.encodings.encoding import Encoding, Value
from posexport.encodings.rope.rope import Rope
from posexport.errors import PosexportError
from posexport.study.plots import decay, distance_vectors, image, scores, shift_matrix, table_rows, vectors, wavelengths
from posexport.study.plots.panels import Group, Subject

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
#: settings in a checkpoint's title even at their defaults
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
    readable = name.replace("_", " ")
    if isinstance(value, bool):
        return readable if value else f"not {readable}"
    if isinstance(value, str) and "," in value:
        return f"{readable} of {value.count(',') + 1} numbers"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, int) and value == 1 and name in ("heads", "rows", "columns"):
        return f"1 {name[:-1]}"
    if name in _WORDS:
        return _WORDS[name].format(text)
    return f"{readable} {text}"


#: hook -> kinds of picture; each returns no groups for an encoding that it does not fit
KINDS: dict[str, list[Callable[[Subject], list[Group]]]] = {
    "embed": [vectors.groups, shift_matrix.groups],
    "scores": [table_rows.groups, scores.groups, distance_vectors.groups],
    "rotate": [wavelengths.groups, decay.groups],
}


def choose(subject: Subject) -> list[Group]:
    """All panels, in groups; PosexportError where there is nothing to show."""
    if subject.alone.layer.axes > 1:
        return image.groups(subject)
    kinds = [kind for hook, kinds in KINDS.items() if subject.alone.has(hook) for kind in kinds]
    groups = [group for kind in kinds for group in kind(subject)]
    if not groups:
        raise PosexportError(
            f"{subject.alone.entry.name} has nothing to show: it acts on neither embeddings, queries and keys, nor "
            f"scores; choose another of posexport list encodings"
        )
    return groups

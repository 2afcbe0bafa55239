"""From an encoding's name, a checkpoint or a bundle to a file with the pictures that fit it."""

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from posexport.encodings.encoding import Encoding, Value
from posexport.encodings.rope.rope import Rope
from posexport.errors import PosexportError
from posexport.sources.encoding_alone import alone
from posexport.system.files import check_free, write_whole
from posexport.tools.plots import decay, distance_vectors, image, scores, shift_matrix, table_rows, vectors, wavelengths
from posexport.tools.plots.figure import SUFFIXES, compose, render
from posexport.tools.plots.panels import Drawing, Group, Subject

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


LENGTH = 64


def plot(
    name: str,
    pairs: Sequence[str],
    target: Path,
    *,
    length: int | None = None,
    force: bool = False,
    allow_pickle: bool = False,
) -> list[str]:
    """Draw the encoding called ``name``, or all of the checkpoint or bundle in the directory ``name``, to ``target``.

    ``pairs``: settings as texts KEY=VALUE. ``length``: how many positions to show; `LENGTH`, or as many as there are.

    Returns:
        The kinds of the panels, in order.

    Raises:
        PosexportError: an unknown encoding, setting or kind of file, a length beyond the encoding's limit, a directory
            that cannot be read, or a file that exists, unless ``force``.
    """
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise PosexportError(f"{target} must end in {', '.join(SUFFIXES)}; choose another name")
    check_free(target, force=force)
    drawn = drawing(name, pairs, length=length, allow_pickle=allow_pickle)
    figure = compose(drawn.groups, drawn.title, drawn.summary)
    write_whole(target, render(figure, suffix, drawn.title, drawn.source), force=force)
    return [panel.kind for group in drawn.groups for row in group.rows for panel in row.panels]


def drawing(name: str, pairs: Sequence[str] = (), *, length: int | None = None, allow_pickle: bool = False) -> Drawing:
    """The drawing that `plot` renders. Raises as `plot` does."""
    if not Path(name).is_dir():
        return _of_encoding(name, pairs, length)
    if pairs:
        raise PosexportError(f"--set is for encodings by name; the settings of {name} are in its files")
    from posexport.tools.plots.checkpoint import pictures

    return pictures(Path(name), length=length, allow_pickle=allow_pickle)


def _of_encoding(name: str, pairs: Sequence[str], length: int | None) -> Drawing:
    if "/" in name:
        raise PosexportError(f"no such directory: {name}; give a checkpoint, a bundle or an encoding's name")
    of_name = alone(name, pairs)
    limit = of_name.layer.limit
    if length is not None and limit is not None and length > limit:
        raise PosexportError(f"--positions must be at most {limit}, the positions that {name} takes, got {length}")
    subject = Subject(of_name, length or (LENGTH if limit is None else min(LENGTH, limit)))
    words = settings_in_words(of_name.layer, {pair.partition("=")[0] for pair in pairs})
    random = f"untrained, random weights (seed {of_name.seed})" if subject.random else ""
    settings = ", ".join(phrase for phrase in (words, random) if phrase)
    title = f"{name}: {settings}" if settings else name
    return Drawing(choose(subject), title, of_name.entry.summary.replace("``", ""), f"Source: {of_name.entry.source}")

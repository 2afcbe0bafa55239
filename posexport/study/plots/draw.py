"""From an encoding's name, a checkpoint or a bundle to a file with the pictures that fit it."""

from collections.abc import Sequence
from pathlib import Path

from posexport.base.system.files import check_free, write_whole
from posexport.errors import PosexportError
from posexport.sources.encoding_alone import alone
from posexport.study.plots.choose import choose, settings_in_words
from posexport.study.plots.figure import SUFFIXES, compose, render
from posexport.study.plots.panels import Drawing, Subject

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
    from posexport.study.plots.checkpoint import pictures

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

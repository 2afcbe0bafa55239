"""From an encoding's name to a file with its pictures."""

from collections.abc import Sequence
from pathlib import Path

from posexport.errors import PosexportError
from posexport.files import check_free, write_whole
from posexport.plots.base import Subject
from posexport.plots.choose import choose
from posexport.plots.figure import SUFFIXES, compose, render
from posexport.sources.encoding_alone import EncodingAlone, alone

LENGTH = 64


def plot(name: str, pairs: Sequence[str], target: Path, *, length: int | None = None, force: bool = False) -> list[str]:
    """Draw the encoding called ``name`` to ``target``; gives the kinds of its panels.

    ``pairs``: settings as texts KEY=VALUE. ``length``: how many positions to show; `LENGTH`, or as many as there are.

    Raises:
        PosexportError: an unknown encoding, setting or kind of file, a length beyond the encoding's limit, or a file
            that exists, unless ``force``.
    """
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise PosexportError(f"{target} must end in {', '.join(SUFFIXES)}; choose another name")
    check_free(target, force=force)
    subject = alone(name, pairs)
    limit = subject.layer.limit
    if length is not None and limit is not None and length > limit:
        raise PosexportError(f"--length must be at most {limit}, the positions that {name} takes, got {length}")
    shown = length or (LENGTH if limit is None else min(LENGTH, limit))
    rows = choose(Subject(subject, shown))
    title = _title(subject)
    figure = compose(rows, title, subject.entry.summary.replace("``", ""))
    write_whole(target, render(figure, suffix, title, f"Source: {subject.entry.source}"), force=force)
    return [panel.kind for row in rows for panel in row]


def _title(subject: EncodingAlone) -> str:
    learned = f"parameters as they begin, seed {subject.seed}" if list(subject.layer.parameters()) else ""
    settings = ", ".join(part for part in (subject.parameters, learned) if part)
    return f"{subject.entry.name}: {settings}" if settings else subject.entry.name

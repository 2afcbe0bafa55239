"""Which pictures fit an encoding: those of the hooks that it acts through."""

from collections.abc import Callable

from posexport.errors import PosexportError
from posexport.plots import decay, heat_map, image, scores, shift_matrix, slices, table_rows
from posexport.plots.base import Panel, Subject

#: hook to the kinds of picture that show it; each answers with no rows where it does not fit
KINDS: dict[str, list[Callable[[Subject], list[list[Panel]]]]] = {
    "embed": [heat_map.rows, slices.rows, shift_matrix.rows],
    "scores": [table_rows.rows, scores.rows],
    "rotate": [decay.rows],
}


def choose(subject: Subject) -> list[list[Panel]]:
    """All panels, in rows; PosexportError where there is nothing to show."""
    if subject.alone.layer.axes > 1:
        return image.rows(subject)
    found = [row for hook, kinds in KINDS.items() if subject.alone.has(hook) for rows in kinds for row in rows(subject)]
    if not found:
        raise PosexportError(
            f"{subject.alone.entry.name} has nothing to show: it acts on neither embeddings, queries and keys, nor "
            f"scores; choose another of posexport list encodings"
        )
    return found

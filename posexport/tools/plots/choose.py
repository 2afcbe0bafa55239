"""Which pictures fit an encoding: those of the hooks that it acts through."""

from collections.abc import Callable

from posexport.errors import PosexportError
from posexport.tools.plots import decay, distance_vectors, image, scores, shift_matrix, table_rows, vectors, wavelengths
from posexport.tools.plots.plot import Group, Subject

#: hook to the kinds of picture that show it; each answers with no groups where it does not fit
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

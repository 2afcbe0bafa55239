"""What pipelines share whose labels the caller names in each call."""

from collections.abc import Iterable, Sequence
from typing import Any

from posexport.base.options.several import several
from posexport.errors import PosexportError
from posexport.run.pipelines.pipeline import Pipeline


class NamedLabels(Pipeline):
    """A pipeline with ``candidate_labels``."""

    def __call__(
        self,
        inputs: Any,
        candidate_labels: str | Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """The answers for labels that the caller names; ``candidate_labels`` may come second."""
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        return super().__call__(inputs, batch_size=batch_size, **options)


def checked_labels(stated: Sequence[str] | None) -> list[str]:
    """The labels that a caller names, as a list. Raises PosexportError for anything else."""
    labels = several(stated)
    if not labels or not all(isinstance(label, str) for label in labels):
        raise PosexportError(
            f"candidate_labels must be a list of texts, got {stated!r:.60}; name at least one label (on the command "
            "line by --text)"
        )
    return labels


def listed_labels(stated: str | Iterable[str] | None) -> list[str]:
    """The labels of a list, or of a text with commas. Raises PosexportError for anything else."""
    if isinstance(stated, str):
        labels = [label for part in stated.split(",") if (label := part.strip())]
    else:
        labels = list(stated) if isinstance(stated, Iterable) else []
    if not labels or not all(isinstance(label, str) for label in labels):
        raise PosexportError(f"candidate_labels must be a list of texts, got {stated!r:.60}; name at least one label")
    return labels

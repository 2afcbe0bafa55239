"""Rows of tokens in calls of about the same size: a call's tokens, not its rows, are what memory and time follow.

Rows of about the same length share a call, as in sentence-transformers: a short text is not computed at the length of
the longest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.texts import Texts

#: padded tokens of one call: more were no faster on two cores, and take memory
BATCH_TOKENS = 4096

Floats = NDArray[np.floating]
Run = Callable[[Mapping[str, NDArray[np.int64]]], Floats]
#: rows that are done, rows in all, and what is told of them
Progress = Callable[[int, int, str], None]


class Batching(TypedDict, total=False):
    """The options of `Batches`."""

    batch_tokens: int
    batch_size: int | None
    progress: Progress | None


@dataclass(frozen=True)
class Batches:
    """How rows share calls.

    Attributes:
        batch_tokens: of one call at most, padding too; a longer row has a call of its own.
        batch_size: rows of one call at most; None: as many as the tokens allow.
        progress: called with the texts that are done, those there are, and ``"texts"``.
    """

    batch_tokens: int = BATCH_TOKENS
    batch_size: int | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name, value in (("batch_tokens", self.batch_tokens), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise PosexportError(f"{name} must be at least 1, got {value}")

    def places(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Of rows of so many tokens those that share a call, the longest rows first."""
        longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        done, rows = 0, len(lengths)
        while done < rows:
            length = max(lengths[longest_first[done]], 1)
            count = max(min(self.batch_tokens // length, self.batch_size or rows), 1)
            yield longest_first[done : done + count]
            done = min(done + count, rows)
            if self.progress is not None:
                self.progress(done, rows, "texts")

    def run(self, run: Run, tokenizer: Texts, rows: Sequence[Any]) -> Floats:
        """What ``run`` gives for calls of the tokenizer's rows, for all rows in their order."""
        out: Floats | None = None
        for chosen in self.places([len(row.ids) for row in rows]):
            values = run(tokenizer.padded([rows[row] for row in chosen]))
            if out is None:
                out = np.empty((len(rows), *values.shape[1:]), values.dtype)
            out[chosen] = values
        assert out is not None
        return out

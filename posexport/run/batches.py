"""Groups rows of similar length into calls of bounded size, counted in padded tokens.

Memory and time depend on the tokens of a call, not on its rows. Sorting by length, as sentence-transformers does, keeps
short texts from being padded to the longest one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.texts import Texts

#: padded tokens of one call; larger calls were not faster on two cores
BATCH_TOKENS = 4096

Floats = NDArray[np.floating]
Run = Callable[[Mapping[str, NDArray[np.int64]]], Floats]
#: finished rows, all rows, and the unit
Progress = Callable[[int, int, str], None]


class Batching(TypedDict, total=False):
    """Keyword arguments that callers pass on to `Batches`."""

    batch_tokens: int
    batch_size: int | None
    progress: Progress | None


@dataclass(frozen=True)
class Batches:
    """How rows are grouped into calls.

    Attributes:
        batch_tokens: largest number of tokens in a call, with padding; a longer row gets a separate call.
        batch_size: largest number of rows in a call; None for no limit.
        progress: called with the number of finished texts, the number of all texts, and ``"texts"``.
    """

    batch_tokens: int = BATCH_TOKENS
    batch_size: int | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name, value in (("batch_tokens", self.batch_tokens), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise PosexportError(f"{name} must be at least 1, got {value}")

    def places(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of the rows of each call, for rows with these ``lengths`` in tokens; the longest rows come first."""
        longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        done, rows = 0, len(lengths)
        while done < rows:
            length = max(lengths[longest_first[done]], 1)
            count = max(min(self.batch_tokens // length, self.batch_size or rows), 1)
            yield longest_first[done : done + count]
            done = min(done + count, rows)
            if self.progress is not None:
                self.progress(done, rows, "texts")

    def run(self, run: Run, tokenizer: Texts, rows: Sequence[Any]) -> Floats:
        """Calls ``run`` on groups of tokenized ``rows`` and returns its results in the order of ``rows``."""
        out: Floats | None = None
        for chosen in self.places([len(text.ids) for text in rows]):
            values = run(tokenizer.padded([rows[index] for index in chosen]))
            if out is None:
                out = np.empty((len(rows), *values.shape[1:]), values.dtype)
            out[chosen] = values
        assert out is not None
        return out

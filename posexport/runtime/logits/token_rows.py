"""Token ids of a growing batch, for logits processors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: padding of rows that are shorter or have ended
NONE = -1


class TokenRows:
    """Ids of prompts and new tokens, [B, S], padded on the left with `NONE`. All rows grow together.

    ``most``: maximum length of each row, [B]. ``prompt_B``: index of each row's prompt.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], most: Sequence[int]) -> None:
        self._width = max(map(len, prompts))
        self._new = 0
        self.begin_B = np.array([len(prompt) for prompt in prompts], np.int64)
        self.most_B = np.array(most, np.int64)
        self.prompt_B: NDArray[np.int64] = np.arange(len(prompts))
        room = self._width + int((self.most_B - self.begin_B).max(initial=0))
        self._ids = np.full((len(prompts), room), NONE, np.int64)
        for ids_S, prompt in zip(self._ids, prompts, strict=True):
            ids_S[self._width - len(prompt) : self._width] = prompt

    @property
    def ids_BS(self) -> NDArray[np.int64]:
        return self._ids[:, : self._width + self._new]

    @property
    def new(self) -> int:
        """Number of new tokens per row, equal for all rows."""
        return self._new

    @property
    def lengths_B(self) -> NDArray[np.int64]:
        """Number of tokens of each row, prompt included."""
        lengths: NDArray[np.int64] = self.begin_B + self._new
        return lengths

    @property
    def new_BN(self) -> NDArray[np.int64]:
        """Ids of the new tokens, [B, N]."""
        return self._ids[:, self._width : self._width + self._new]

    def append(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Append one token to every row."""
        self._ids[:, self._width + self._new] = tokens
        self._new += 1

    def take(self, rows: Sequence[int] | NDArray[Any]) -> None:
        """Select rows, in this order. A row may be selected several times."""
        index = np.asarray(rows)
        self._ids = self._ids[index]
        self.begin_B, self.most_B, self.prompt_B = self.begin_B[index], self.most_B[index], self.prompt_B[index]

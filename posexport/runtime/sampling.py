"""Chooses the next token from scores: greedy, or sampled with a seeded generator. NumPy, in float64.

Sampling inverts the cumulative distribution over token ids, with one uniform random value per token. Equal scores and
seeds give equal tokens, whatever the batch size.

Shape letters: V vocabulary.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.logits.processor import softmax

NOT_NUMBERS = "the model's logits are not numbers (NaN); verify the bundle with posexport verify"


class Chooser:
    """Chooses the tokens of one row. Rows with equal prompts have different values of ``turn``, so samples differ."""

    def __init__(self, *, samples: bool = False, seed: int = 0, turn: int = 0) -> None:
        self._random = np.random.default_rng([seed, turn]) if samples else None

    def __call__(self, scores_V: NDArray[Any]) -> int:
        """Return the next token; PosexportError if a score is NaN."""
        if np.isnan(scores_V).any():
            raise PosexportError(NOT_NUMBERS)
        if self._random is None:
            return int(np.argmax(scores_V))
        if np.isneginf(scores_V.max()):
            raise PosexportError(
                "every token is forbidden, so none can be drawn; give fewer options that forbid tokens"
            )
        return pick(softmax(scores_V.astype(np.float64)), self._random.random())


def pick(p_V: NDArray[Any], uniform: float) -> int:
    """The token at ``uniform`` (from 0 up to 1) of the cumulative distribution, ids ascending."""
    sums_V = np.cumsum(p_V)
    # the product may round up to the sum itself
    index = int(np.searchsorted(sums_V, uniform * sums_V[-1], side="right"))
    return min(index, int(np.flatnonzero(p_V)[-1]))

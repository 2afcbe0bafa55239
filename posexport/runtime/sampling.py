"""The next token from logits: the best one, or one drawn from a seeded generator. NumPy, in float64.

Draws are inversions of the cumulative distribution over token ids, one uniform number a token: the same logits and the
same seed give the same token, however many prompts are computed together.

Shape letters: V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

Logits = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen: the best one, unless one of ``temperature``, ``top_k`` and ``top_p`` is given.

    ``temperature``: logits are divided by it (1 where it is not given, 0: the best token). ``top_k``: only so many of
    the likeliest tokens (0: all), then ``top_p``: of those only the fewest that together have this probability, first
    the likeliest; Holtzman et al., "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751), section 3.1. Of
    equally likely tokens those with lower ids come first.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature is not None and not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise PosexportError(f"temperature must be 0 (the best token) or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 0:
            raise PosexportError(f"top_k must be a number of tokens, or 0 for all, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise PosexportError(f"top_p must be a probability above 0 and at most 1, got {self.top_p}")
        if self.seed < 0:
            raise PosexportError(f"seed must be 0 or more, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """The best token is taken, nothing is drawn."""
        return self.temperature == 0 or (self.temperature is None and self.top_k is None and self.top_p is None)


class Chooser:
    """Chooses one row's tokens in turn; ``turn`` tells rows with the same prompt apart, so that they differ."""

    def __init__(self, sampling: Sampling, turn: int = 0) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng([sampling.seed, turn])

    def __call__(self, logits_V: Logits) -> int:
        """The next token; PosexportError where a logit is no number."""
        if np.isnan(logits_V).any():
            raise PosexportError("the model's logits are not numbers (NaN); verify the bundle with posexport verify")
        if self._sampling.greedy:
            return int(np.argmax(logits_V))
        return pick(probabilities(logits_V, self._sampling), self._random.random())


def probabilities(logits_V: Logits, sampling: Sampling) -> NDArray[np.float64]:
    """The distribution that is drawn from: softmax of what ``top_k`` and ``top_p`` leave, 0 elsewhere."""
    with np.errstate(under="ignore", over="ignore"):
        gaps_V = (logits_V.astype(np.float64) - np.max(logits_V)) / (sampling.temperature or 1.0)
        weights_V = np.exp(gaps_V)
    if sampling.top_k:
        weights_V[_order(weights_V, logits_V)[sampling.top_k :]] = 0.0
    if sampling.top_p is not None and sampling.top_p < 1:
        order = _order(weights_V, logits_V)
        before = np.cumsum(weights_V[order]) - weights_V[order]
        weights_V[order[before >= sampling.top_p * weights_V.sum()]] = 0.0
    total: NDArray[np.float64] = weights_V / weights_V.sum()
    return total


def pick(p_V: NDArray[np.float64], uniform: float) -> int:
    """The token at ``uniform`` (from 0 up to 1) of the cumulative distribution, ids ascending."""
    sums_V = np.cumsum(p_V)
    # the product may round up to the sum itself
    index = int(np.searchsorted(sums_V, uniform * sums_V[-1], side="right"))
    return min(index, int(np.flatnonzero(p_V)[-1]))


def _order(weights_V: NDArray[np.float64], logits_V: Logits) -> NDArray[np.intp]:
    """Tokens from the likeliest on, those that are already out of it last."""
    return np.lexsort((-logits_V.astype(np.float64), weights_V == 0))

"""Scores of pairs of texts by a cross-encoder, and documents in the order of their scores.

Nogueira and Cho, "Passage Re-ranking with BERT" (arXiv:1901.04085). A decoder that answers yes or no (Qwen3-Reranker)
reads both texts in a template; its score is the probability of yes among both.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.spec import PairRules

LOGITS = "logits"
Floats = NDArray[np.floating]


class Ranked(TypedDict):
    """A document: its place in the list that was given, and its score."""

    corpus_id: int
    score: float


def _sigmoid(logits: Floats) -> Floats:
    """Without an overflow for large negative ones."""
    small = np.exp(-np.abs(logits))
    out: Floats = np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(logits.dtype)
    return out


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {"Sigmoid": _sigmoid, "Identity": lambda x: x, "Tanh": np.tanh}


def activated(logits_BL: Floats, rules: PairRules) -> Floats:
    """What the model's own activation makes of logits; [B] where there is one label, as CrossEncoder.predict has it."""
    labels = logits_BL.shape[1]
    name = rules.activation or ("Sigmoid" if labels == 1 else "Identity")
    if name not in ACTIVATIONS:
        raise PosexportError(
            f"this model's scores are {name} of its logits, which is not computed here (known: "
            f"{', '.join(ACTIVATIONS)}); run it and apply it yourself"
        )
    scores = ACTIVATIONS[name](logits_BL)
    return scores[:, 0] if labels == 1 else scores


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """PosexportError for what is no list of pairs of texts."""
    if not pairs:
        raise PosexportError("got no pairs; give at least one pair of texts")
    for number, pair in enumerate(pairs):
        whole = isinstance(pair, tuple | list) and len(pair) == 2
        if not whole or not all(isinstance(text, str) for text in pair):
            raise PosexportError(f"pair {number} must be two texts, got {pair!r:.60}; give (query, document)")


def in_order(scores: Floats, top_k: int | None) -> list[Ranked]:
    """The documents, the one with the highest score first; equal scores keep their order."""
    if scores.ndim != 1:
        raise PosexportError(
            f"this model gives {scores.shape[1]} scores a pair, so nothing says which document is better; use predict"
        )
    if top_k is not None and top_k < 1:
        raise PosexportError(f"top_k must be at least 1, got {top_k}; leave it out for all documents")
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(corpus_id=int(place), score=float(scores[place])) for place in order]

"""Scores of pairs of texts by a cross-encoder, and documents in the order of their scores.

Nogueira and Cho, "Passage Re-ranking with BERT" (arXiv:1901.04085). A decoder that answers yes or no (Qwen3-Reranker)
reads both texts in a template; its score is the probability of yes among both.
"""

from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.activations import Floats, activation
from posexport.spec import PairRules

LOGITS = "logits"


class Ranked(TypedDict):
    """A document: its place in the list that was given, its score, and its text where asked for."""

    corpus_id: int
    score: float
    text: NotRequired[str]


def activated(
    logits_BL: Floats, rules: PairRules, activation_fn: str | Callable[[NDArray[Any]], NDArray[Any]] | None = None
) -> Floats:
    """What ``activation_fn`` or the model's own activation makes of logits; [B] where there is one label."""
    labels = logits_BL.shape[1]
    chosen = activation_fn or rules.activation_of(labels)
    scores = activation(chosen)(logits_BL)
    return scores[:, 0] if labels == 1 and scores.ndim > 1 else scores


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

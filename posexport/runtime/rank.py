"""Scores of a cross-encoder, and documents sorted by them.

Nogueira and Cho, "Passage Re-ranking with BERT" (arXiv:1901.04085). A decoder that predicts yes or no (Qwen3-Reranker)
reads both texts in a template; its score is the probability of yes, normalised over yes and no.
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
    """A ranked document: its index in the list of documents, its score, and with ``return_documents`` its text."""

    corpus_id: int
    score: float
    text: NotRequired[str]


def activated(
    logits_BL: Floats, rules: PairRules, activation_fn: str | Callable[[NDArray[Any]], NDArray[Any]] | None = None
) -> Floats:
    """Applies ``activation_fn``, else the activation of the rules, to logits; [B] for one label, else [B, L]."""
    labels = logits_BL.shape[1]
    chosen = activation_fn or rules.activation_of(labels)
    scores = activation(chosen)(logits_BL)
    return scores[:, 0] if labels == 1 and scores.ndim > 1 else scores


def in_order(scores: Floats, top_k: int | None) -> list[Ranked]:
    """The documents by descending score; equal scores keep the order of the documents."""
    if scores.ndim != 1:
        raise PosexportError(
            f"this model gives {scores.shape[1]} scores a pair, which do not rank documents; use predict"
        )
    if top_k is not None and top_k < 1:
        raise PosexportError(f"top_k must be at least 1, got {top_k}; leave it out for all documents")
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(corpus_id=int(place), score=float(scores[place])) for place in order]

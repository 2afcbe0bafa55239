"""Terms of attention when all positions move by the same amount, and biases along the diagonals.

A number that is the same for all keys of a query does not count: softmax does not see it (BLOOM's form of ALiBi differs
from the others by just that).
"""

import numpy as np
import torch
from torch import Tensor

from posexport.encodings.encoding import Term
from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.shift_check.records import Check, block, positions_from, steps

SCORES = "scores stay when all positions move"
VALUES = "values stay when all positions move"
TOEPLITZ = "bias depends on the distance alone"
LENGTH = 32
FAR = 1000


def places(subject: EncodingAlone) -> tuple[int, int]:
    """How many positions to take, and by how much to move them: past every boundary, and within the limit."""
    if subject.layer.axes > 1:
        (rows, columns), step = block(subject.layer)
        return rows * columns, step
    limit = subject.layer.limit
    if limit is None:
        return LENGTH, FAR + max(subject.layer.boundaries, default=0)
    length = min(LENGTH, (limit + 1) // 2)
    return length, limit - length


def drawn(subject: EncodingAlone, length: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Queries and keys, [1, H, T, D] in float64, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, subject.heads, length, subject.head_size, generator=generator, dtype=torch.float64)
    return q, k


def dense(term: Term, q_BHTD: Tensor, k_BHSD: Tensor) -> Tensor:
    """A score term as a tensor, for every head."""
    return term.dense(q=q_BHTD, k=k_BHSD)


def check_scores(subject: EncodingAlone) -> Check:
    """The largest change of a score, but for one number for all keys of a query, relative to the largest score."""
    if reason := _unclaimed(subject, "scores"):
        return Check(claim=SCORES, figure=None, detail=reason)
    length, far = places(subject)
    q, k = drawn(subject, length)
    here, there = (_scores(subject, q, k, first) for first in (0, far))
    raw = _relative(there - here, here)
    figure = _relative(_beside_rows(there - here), here)
    return Check(claim=SCORES, figure=figure, detail=f"{length} tokens moved by {far}{_rows(raw, figure)}")


def check_values(subject: EncodingAlone) -> Check:
    """The largest relative change of the values term for the same probabilities."""
    if reason := _unclaimed(subject, "values"):
        return Check(claim=VALUES, figure=None, detail=reason)
    length, far = places(subject)
    q, k = drawn(subject, length)
    probs = (q @ k.mT).softmax(-1)

    def values(first: int) -> Tensor:
        at = positions_from(first, length, subject.layer)
        term = subject.layer.double().values(at, at)
        assert term is not None
        return term.dense(probs=probs)

    here, there = values(0), values(far)
    return Check(claim=VALUES, figure=_relative(there - here, here), detail=f"{length} tokens moved by {far}")


def check_toeplitz(subject: EncodingAlone) -> Check:
    """The largest step along a diagonal, but for one number for all keys of a query, relative to the largest bias."""
    if reason := _unclaimed(subject, "scores"):
        return Check(claim=TOEPLITZ, figure=None, detail=reason)
    length, _ = places(subject)
    q, k = drawn(subject, length)
    at = positions_from(0, length, subject.layer)
    term = subject.layer.double().scores(q, k, at, at)
    if term is None or term.operator.takes or subject.layer.reads_input:
        return Check(claim=TOEPLITZ, figure=None, detail="its scores depend on queries or keys, they are no bias")
    bias = dense(term, q, k)
    changes = steps(bias, subject.layer)
    figure, raw = (
        float(np.max([_relative(step, bias) for step in group])) for group in (map(_beside_rows, changes), changes)
    )
    detail = f"b[i, j] = b[i + 1, j + 1] among {length} tokens, heads: {bias.shape[1]}"
    return Check(claim=TOEPLITZ, figure=figure, detail=detail + _rows(raw, figure))


def _unclaimed(subject: EncodingAlone, hook: str) -> str:
    """Why the encoding does not claim invariance of ``hook``; empty if it does."""
    if not subject.has(hook):
        return "it adds nothing to the scores" if hook == "scores" else "it adds nothing to the values"
    if not subject.layer.shift_invariant:
        return "its scores depend on more than distances, and it says so"
    if places(subject)[1] < 1:
        return f"an input of at most {subject.layer.limit} tokens cannot move"
    return ""


def _scores(subject: EncodingAlone, q: Tensor, k: Tensor, first: int) -> Tensor:
    at = positions_from(first, q.shape[2], subject.layer)
    term = subject.layer.double().scores(q, k, at, at)
    assert term is not None
    return dense(term, q, k)


def _beside_rows(x_BHTS: Tensor) -> Tensor:
    """``x`` without each row's mean."""
    return x_BHTS - x_BHTS.mean(-1, keepdim=True)


def _rows(raw: float, figure: float) -> str:
    """A remark where what was left out is not nothing."""
    return f"; but for one number for each query ({raw:.3g}), unseen by softmax" if raw > 1e3 * figure + 1e-9 else ""


def _relative(change: Tensor, scale: Tensor) -> float:
    largest = float(scale.abs().max())
    largest_change = float(change.abs().max()) if change.numel() else 0.0
    return largest_change / largest if largest else largest_change

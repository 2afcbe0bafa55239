"""Rotations of queries and keys: lengths of vectors stay, and products depend on the distance alone.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.1: ``<R(i) q, R(j) k>`` is a function of q, k and i - j.
"""

import torch
from torch import Tensor

from posexport.encodings.rope.rope import Rope
from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.shift_check.records import Check, positions_from, steps
from posexport.study.shift_check.relative import drawn, places

NORM = "rotated vectors keep their length"
DISTANCE = "q . k depends on the distance alone"
MOVED = "q . k stays when all positions move"
_NONE = "it does not rotate"


def check_norms(subject: EncodingAlone) -> Check:
    """The largest relative change of a vector's length from position 0 to any other.

    Where the definition multiplies by an attention factor, every length is multiplied by it, at position 0 too.
    """
    if not subject.has("rotate"):
        return Check(claim=NORM, figure=None, detail=_NONE)
    length = _length(subject)
    x = drawn(subject, 1)[0].expand(-1, -1, length, -1)
    as_query, as_key = rotated(subject, x, x, 0)
    if not torch.equal(as_query, as_key):
        return Check(claim=NORM, figure=None, detail="it scales queries and keys by inverse factors")
    before, after = x.norm(dim=-1), as_query.norm(dim=-1)
    factor = subject.layer.schedule.attention_factor if isinstance(subject.layer, Rope) else 1.0
    figure = (after / after[..., :1] - 1).abs().max()
    if factor == 1:
        figure = torch.maximum(figure, (after / before - 1).abs().max())
        detail = f"{length} positions"
    else:
        detail = f"{length} positions; turned channels are longer by the attention factor {factor:.4g}"
    return Check(claim=NORM, figure=float(figure), detail=detail)


def check_distance(subject: EncodingAlone) -> Check:
    """The largest step of ``q . k`` along a diagonal, the same q and k at every position, relative to the largest."""
    if not subject.has("rotate"):
        return Check(claim=DISTANCE, figure=None, detail=_NONE)
    length = _length(subject)
    product = _products(subject, length, 0)
    largest = [step.abs().max() for step in steps(product, subject.layer) if step.numel()]
    return Check(
        claim=DISTANCE,
        figure=float(torch.stack(largest).max() / product.abs().max()) if largest else 0.0,
        detail=f"one query and one key at {length} positions each",
    )


def check_moved(subject: EncodingAlone) -> Check:
    """The largest change of ``q . k`` when all positions move, relative to the largest."""
    if not subject.has("rotate"):
        return Check(claim=MOVED, figure=None, detail=_NONE)
    if not subject.layer.shift_invariant:
        return Check(claim=MOVED, figure=None, detail="its angles depend on how long the input is, and it says so")
    length, far = places(subject)
    if far < 1:
        detail = f"an input of at most {subject.layer.limit} tokens cannot move"
        return Check(claim=MOVED, figure=None, detail=detail)
    here, there = (_products(subject, length, first) for first in (0, far))
    return Check(
        claim=MOVED,
        figure=float((there - here).abs().max() / here.abs().max()),
        detail=f"{length} tokens moved by {far}",
    )


def rotated(subject: EncodingAlone, q_BHTD: Tensor, k_BHTD: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Queries and keys at positions from ``first`` on, rotated; the length of the input is theirs."""
    layer = subject.layer.double()
    at = positions_from(first, q_BHTD.shape[2], layer)
    return layer.rotate(q_BHTD, at, "query"), layer.rotate(k_BHTD, at, "key")


def _length(subject: EncodingAlone) -> int:
    return places(subject)[0] if subject.layer.axes > 1 else min(512, subject.layer.limit or 512)


def _products(subject: EncodingAlone, length: int, first: int) -> Tensor:
    """``q . k`` for every pair of positions, one q and one k a head, [1, H, T, T]."""
    q, k = (x.expand(-1, -1, length, -1) for x in drawn(subject, 1))
    q, k = rotated(subject, q, k, first)
    return q @ k.mT

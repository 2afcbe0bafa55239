"""Whether candidates of the same weights give the same answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posexport.parity.agreement.cosine import cosine as cosine_of
from posexport.parity.criterion import EPS
from posexport.targets.precisions import FP32, PrecisionName
from posexport.tools.bench.candidate import Candidate
from posexport.tools.bench.records import LARGEST_DIFFERENCE, Point

#: answers of quantized graphs are one model's where their cosines are at least these
LEAST_COSINE: Mapping[PrecisionName, float] = {"int8": 0.95, "int4": 0.5, "int4-fp16": 0.5}
#: answers in 16 bits may differ by so many eps: no measure of exactness, which `posexport verify` is for
HALF_STEPS = 64


class Compared(NamedTuple):
    """An answer with another one: the largest difference, the cosine, whose it is, whether the model is the same."""

    difference: float
    cosine: float | None
    reference: str
    right: bool


class References:
    """The first answers of every set of weights at every point, to which later ones are held."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Point], tuple[Candidate, Any]] = {}

    def compared(self, candidate: Candidate, point: Point, path: Path) -> Compared | None:
        """The answer in ``path`` with the first one of these weights; None: it is the first."""
        answer = np.load(path)
        first, kept = self._first.setdefault((candidate.weights, point), (candidate, answer))
        if kept is answer:
            return None
        gap = difference(answer, kept)
        below = [name for name in (first.precision, candidate.precision) if name != FP32.name]
        cosine = None
        if below and answer.shape == kept.shape:
            cosine = float(cosine_of(answer.reshape(-1, answer.shape[-1]), kept.reshape(-1, kept.shape[-1])).mean())
        return Compared(gap, cosine, first.name, right(gap, cosine, below))


def right(gap: float, cosine: float | None, precisions: list[PrecisionName]) -> bool:
    """Whether answers are one model's: to rounding, or as far apart as ``precisions`` below float32 may bring them."""
    quantized = [LEAST_COSINE[name] for name in precisions if name in LEAST_COSINE]
    if quantized:
        return cosine is not None and cosine >= min(quantized)
    return gap <= max([LARGEST_DIFFERENCE, *(HALF_STEPS * EPS[name] for name in precisions)])


def difference(answer: Any, reference: Any) -> float:
    """The largest difference, relative to the reference's largest entry; infinite where the shapes differ."""
    if answer.shape != reference.shape:
        return float("inf")
    return float(np.abs(answer - reference).max() / np.abs(reference).max())

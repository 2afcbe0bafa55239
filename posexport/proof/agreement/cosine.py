"""Cosine of each token with the float64 reference, and how often the best class is the same. Imports no torch.

A cosine ignores the scale of the outputs; the error of `posexport.proof.criterion` is reported and judged as well.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import OutputSpec
from posexport.proof.criterion import Array, RealTokens, rows
from posexport.run.bundle.manifest import OutputAgreement

#: the direction of a vector of fewer elements says little: then all tokens and rows form one vector
FEW = 16
#: the last part of the names of outputs with one value for each class
LOGITS = "logits"


class Cosines(NamedTuple):
    """Of the tokens of one output.

    Attributes:
        values: cosine of each compared vector, [N]; none where there was nothing to compare.
        best: whether the largest element is the same, [M]; None for outputs that are no logits.
    """

    values: NDArray[np.float64]
    best: NDArray[np.bool_] | None

    @property
    def mean(self) -> float | None:
        return float(self.values.mean()) if self.values.size else None

    @property
    def least(self) -> float | None:
        return float(self.values.min()) if self.values.size else None

    @property
    def top_1(self) -> float | None:
        """The share of tokens with the same best class."""
        return float(self.best.mean()) if self.best is not None and self.best.size else None

    @property
    def agreement(self) -> OutputAgreement | None:
        """For the manifest; None where there was nothing to compare."""
        if self.mean is None or self.least is None:
            return None
        return OutputAgreement(cosine=self.mean, least_cosine=self.least, top_1=self.top_1)


def cosines(y: Array, truth: Array, spec: OutputSpec, keep_BT: RealTokens) -> Cosines:
    """Of ``y`` against ``truth``, both shaped as the axes of ``spec`` say; tokens without ``keep_BT`` do not count."""
    pairs = [
        (got, expected)
        for got_, expected_, keep in rows(y, truth, spec.axes, keep_BT)
        for got, expected in _vectors(
            got_ if keep is None else got_[keep], expected_ if keep is None else expected_[keep]
        )
        if expected.size
    ]
    if not pairs:
        return Cosines(np.empty(0), None)
    is_logits = spec.name.endswith(LOGITS) and all(expected.shape[-1] > 1 for _, expected in pairs)
    best = np.concatenate([g.argmax(-1) == e.argmax(-1) for g, e in pairs]) if is_logits else None
    if pairs[0][1].shape[-1] < FEW:
        pairs = [
            (np.concatenate([g.ravel() for g, _ in pairs])[None], np.concatenate([e.ravel() for _, e in pairs])[None])
        ]
    if pairs[0][1].shape[-1] < FEW:
        return Cosines(np.empty(0), best)
    return Cosines(np.concatenate([cosine(g, e) for g, e in pairs]), best)


def cosine(y_NC: Array, truth_NC: Array) -> NDArray[np.float64]:
    """Of each row, [N]. Two rows of zeros agree; a number that is not finite agrees with nothing."""
    y, truth = y_NC.astype(np.float64), truth_NC.astype(np.float64)
    norms = np.linalg.norm(y, axis=-1) * np.linalg.norm(truth, axis=-1)
    products = (y * truth).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        defined = np.where(
            norms == 0, np.where(np.abs(y).sum(-1) + np.abs(truth).sum(-1) == 0, 1.0, 0.0), products / norms
        )
    return np.nan_to_num(defined, nan=0.0)


def total(parts: Sequence[Cosines]) -> Cosines:
    """Returns the cosines of several calls of one output as one."""
    best = [item.best for item in parts if item.best is not None]
    values = [item.values for item in parts]
    return Cosines(np.concatenate(values) if values else np.empty(0), np.concatenate(best) if best else None)


def _vectors(y: Array, truth: Array) -> Iterator[tuple[Array, Array]]:
    """The outputs of one row of the batch as [N, C]: a vector a token, or one where an element has no channels."""
    if truth.ndim < 2:
        yield y.reshape(1, -1), truth.reshape(1, -1)
    else:
        yield y.reshape(len(y), -1), truth.reshape(len(truth), -1)

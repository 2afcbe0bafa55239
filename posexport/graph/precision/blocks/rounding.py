"""Rounds a weight to integers of few bits, with a scale for every block of consecutive weights of a channel.

A block is values * scale, symmetric, or (values - zero) * scale. Both operators that multiply these weights take zero
points as integers only, at their fastest.

GPTQ (Frantar et al. 2023, arXiv:2210.17323, sections 3 and 4) rounds one row after the other, and the rows that follow
compensate each row's error: by the Cholesky factor of the inverse of H = X^T X (algorithm 1), where X is what the
weight is multiplied by on texts. It minimises the error of the products, not of the weights. Rows come in the
order of their curvature, the largest first (the authors' code calls this activation order), with scales that are known
before: all-MiniLM-L6-v2 has a cosine of 0.992 then over 500 sentences, 0.990 in the order of the rows, and 0.967 to
nearest.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.precision.calibration import Calibration, observed
from posexport.graph.precision.projections import Projection

Floats = NDArray[np.float32]

#: values that are rounded at once: they fit the cache of a core
_AT_ONCE = 1 << 17
#: HQQ's norm of the error, its first weight of the proximal term, its factor for every round, its rounds (the paper's
#: section on the solver; more rounds change less than 0.1%)
_NORM, _BETA, _GROWTH, _ROUNDS = 0.7, 10.0, 1.01, 20


@dataclass(frozen=True)
class Rounded:
    """A matrix [K, N] in blocks of its rows.

    Attributes:
        values: whole numbers from 0 to 2^bits - 1, uint8 [N, blocks, size]; what fills the last block up means 0.
        scales: float32 [N, blocks].
        zeros: the whole number that means 0, uint8 [N, blocks]; None: 2^(bits - 1) in all.
    """

    values: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8] | None = None

    def real(self, bits: int) -> Floats:
        """The real values, [N, blocks * size]."""
        zeros = np.float32(1 << (bits - 1)) if self.zeros is None else self.zeros[..., None].astype(np.float32)
        whole: Floats = (self.values.astype(np.float32) - zeros) * self.scales[..., None]
        return whole.reshape(len(whole), -1)


def nearest(matrix: Floats, bits: int, size: int) -> Rounded:
    """Round to nearest, symmetric; the weight of the largest magnitude of a block is -2^(bits - 1) exactly.

    A scale of it / -2^(bits - 1), which may be negative, uses all 2^bits numbers; magnitude / (2^(bits - 1) - 1) leaves
    one out (16 numbers against 15: logits of a decoder agree to 0.907 instead of 0.884).
    """
    blocks = _blocks(matrix, size)
    flat, half = blocks.reshape(-1, size), 1 << (bits - 1)
    values, scales = np.empty(flat.shape, np.uint8), np.empty(len(flat), np.float32)
    rows = max(1, _AT_ONCE // size)
    for start in range(0, len(flat), rows):
        # blocks side by side: NumPy reduces along the first axis several times as fast as along a short last one
        some = np.ascontiguousarray(flat[start : start + rows].T)
        extreme = _extreme(some)
        scale = np.where(extreme == 0, 1, extreme / -half).astype(np.float32)
        whole = np.rint(some / scale)
        whole += half
        values[start : start + rows] = np.clip(whole, 0, 2 * half - 1, out=whole).astype(np.uint8).T
        scales[start : start + rows] = scale
    return Rounded(values.reshape(blocks.shape), scales.reshape(blocks.shape[:2]))


def _extreme(blocks: Floats) -> Floats:
    """The value of the largest magnitude of each block [size, N], the first of two."""
    low, high = blocks.min(0), blocks.max(0)
    extreme = np.where(high > -low, high, low)
    both = high == -low
    if both.any():
        of_both = blocks[:, both]
        extreme[both] = np.take_along_axis(of_both, np.abs(of_both).argmax(0)[None], 0)[0]
    return np.asarray(extreme)


def half_quadratic(matrix: Floats, bits: int, size: int) -> Rounded:
    """HQQ: zero points and scales for which the error's p-norm (0.7) is least, without data.

    Half-quadratic quantization of large machine learning models, Badri and Shaji 2023: the error is split off with a
    proximal term and shrunk, and what remains is solved in closed form, in turns. Zero points are whole numbers here,
    so that the solution is one of the scale too: sum (q - z)(W - e) / sum (q - z)^2. A block keeps the best of all
    rounds by that norm; the first is the asymmetric rounding to nearest and another the symmetric one.
    """
    blocks = _blocks(matrix, size)
    most = np.float32((1 << bits) - 1)
    symmetric = nearest(matrix, bits, size)
    half = np.full_like(symmetric.scales[..., None], 1 << (bits - 1))
    best = [symmetric.values.astype(np.float32), symmetric.scales[..., None], half]
    least = _distance(blocks, best)
    low, high = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    scale = np.where(high == low, 1, (high - low) / most).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, most)
    for beta in _BETA * _GROWTH ** np.arange(_ROUNDS, dtype=np.float32):
        whole = np.clip(np.rint(blocks / scale + zero), 0, most)
        distance = _distance(blocks, [whole, scale, zero])
        better = distance < least
        least = np.where(better, distance, least)
        best = [np.where(better, new, old) for new, old in zip([whole, scale, zero], best, strict=True)]
        target = blocks - _shrunk(blocks - (whole - zero) * scale, beta)
        zero = np.clip(np.rint((whole - target / scale).mean(-1, keepdims=True)), 0, most)
        steps = whole - zero
        square = (steps * steps).sum(-1, keepdims=True)
        fitted = (steps * target).sum(-1, keepdims=True) / np.maximum(square, 1)
        scale = np.where(np.abs(fitted) > np.finfo(np.float32).tiny, fitted, scale).astype(np.float32)
    values, scale, zero = best
    return Rounded(values.astype(np.uint8), scale[..., 0], zero[..., 0].astype(np.uint8))


def _blocks(matrix: Floats, size: int) -> Floats:
    """[N, blocks, size] of [K, N], padded with zeros."""
    k, n = matrix.shape
    count = -(-k // size)
    if k == count * size:
        return np.ascontiguousarray(matrix.T, np.float32).reshape(n, count, size)
    padded = np.zeros((n, count * size), np.float32)
    padded[:, :k] = matrix.T
    return padded.reshape(n, count, size)


def _distance(blocks: Floats, rounded: "list[Floats]") -> Floats:
    whole, scale, zero = rounded
    distance: Floats = (np.abs(blocks - (whole - zero) * scale) ** _NORM).sum(-1, keepdims=True)
    return distance


def _shrunk(error: Floats, beta: float) -> Floats:
    """The proximal operator of the p-norm: small errors become 0, large ones stay."""
    size = np.abs(error)
    less = size ** (_NORM - 1) / beta if size.all() else np.where(size > 0, size, 1) ** (_NORM - 1) / beta
    shrunk: Floats = np.sign(error) * np.maximum(size - less, 0)
    return shrunk.astype(np.float32)


#: of the mean of H's diagonal, added to the diagonal: channels that texts hardly use have next to no curvature. The
#: paper's; five times as much changes the mean cosine on MiniLM by less than 0.001
DAMPING = 0.01
#: rows in a block: their errors are applied to all later rows in one product
_TOGETHER = 128


@dataclass(frozen=True)
class Factor:
    """The second-order information about the inputs of a weight [K, N].

    Attributes:
        order: [K], its rows, the one of the largest curvature first.
        upper: [K, K], the Cholesky factor of the inverse of H, of rows in that order.
    """

    order: NDArray[np.intp]
    upper: Floats


def factors(model: ir.Model, chosen: Sequence[Projection], calibration: Calibration) -> dict[ir.Value, Factor]:
    """The factor of every weight that projections of the main graph read; a shared weight has all its inputs'.

    A matrix for each value that is projected, all kept until the file is written.
    """
    moments: dict[ir.Value, NDArray[np.float64]] = {}
    for values in observed(model, chosen, calibration):
        for value, x in values.items():
            x64 = x.astype(np.float64)
            moments[value] = moments.get(value, 0.0) + x64.T @ x64
    read: dict[ir.Value, dict[ir.Value, None]] = defaultdict(dict)
    for projection in chosen:
        if projection.x in moments:
            read[projection.weight.value][projection.x] = None
    known: dict[frozenset[ir.Value], Factor] = {}
    for values_read in read.values():
        key = frozenset(values_read)
        if key not in known:
            known[key] = factor(np.sum([moments[value] for value in values_read], axis=0))
    return {weight: known[frozenset(values_read)] for weight, values_read in read.items()}


def factor(moments: NDArray[np.float64]) -> Factor:
    """Of H = ``moments`` [K, K], dampened."""
    curvature = np.diag(moments)
    order = np.argsort(-curvature, kind="stable")
    damping = max(DAMPING * float(curvature.mean()), float(np.finfo(np.float32).tiny))
    dampened = moments[np.ix_(order, order)] + damping * np.eye(len(moments))
    return Factor(order, np.linalg.cholesky(np.linalg.inv(dampened)).T.astype(np.float32))


def second_order(matrix: Floats, known: Factor, bits: int, size: int) -> Rounded:
    """GPTQ: ``matrix`` [K, N] in blocks of its rows, with the scales of `nearest`."""
    k, n = matrix.shape
    half, upper = 1 << (bits - 1), known.upper
    scales = nearest(matrix, bits, size).scales
    left_NK = matrix.T[:, known.order].astype(np.float64)
    values = np.full((n, scales.shape[1] * size), half, np.uint8)
    for first in range(0, k, _TOGETHER):
        end = min(first + _TOGETHER, k)
        errors = np.empty((n, end - first))
        for turn in range(first, end):
            row = known.order[turn]
            scale = scales[:, row // size].astype(np.float64)
            whole = np.clip(np.rint(left_NK[:, turn] / scale), -half, half - 1)
            values[:, row] = whole + half
            error = (left_NK[:, turn] - whole * scale) / upper[turn, turn]
            left_NK[:, turn:end] -= error[:, None] * upper[turn, turn:end]
            errors[:, turn - first] = error
        left_NK[:, end:] -= errors @ upper[first:end, end:]
    return Rounded(values.reshape(n, -1, size), scales)

"""Encodings of images: their vectors and their similarity, biases and decay, as maps over rows and columns."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.encodings.positions import Positions
from posexport.plots.base import Array, Panel, Subject, signed_map
from posexport.shift_check.relative import dense, drawn
from posexport.shift_check.sinusoid import position_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VECTORS = 256
#: heads of a bias that get a map each
HEADS = 4


def rows(subject: Subject) -> list[list[Panel]]:
    """The panels of every hook that the encoding acts through, for a square image or a window."""
    alone = subject.alone
    side = min(math.isqrt(subject.length), getattr(alone.layer, "window", None) or subject.length)
    found = []
    if alone.has("embed"):
        found += _vectors(subject, side)
    if alone.has("scores"):
        found += _biases(subject, side)
    if alone.has("rotate"):
        found += _decay(subject, side)
    return found


def _vectors(subject: Subject, side: int) -> list[list[Panel]]:
    """Every patch's vector; how alike that of the patch in the middle is to all; two dimensions over the image."""
    at = Positions.image(side, side)
    vectors_PC, what = position_vectors(subject.alone, side * side, at)
    size_P = np.linalg.norm(vectors_PC, axis=1)
    middle = _middle(side)
    alike_P = vectors_PC @ vectors_PC[middle] / np.maximum(size_P * size_P[middle], np.finfo(np.float64).tiny)
    channels = vectors_PC.shape[1]
    shown = sorted({0, channels // 2})

    def heat_map(axes: "Axes") -> None:
        signed_map(axes, vectors_PC, "value")
        axes.set(xlabel="dimension", ylabel="patch, row by row", title=f"Every patch's vector, {what}")

    maps = [
        _map(
            "similarity",
            alike_P.reshape(side, side),
            "cosine of the angle",
            f"Likeness to patch {_named(middle, side)}",
        )
    ]
    maps += [
        _map("dimension", vectors_PC[:, channel].reshape(side, side), "value", f"Dimension {channel} over the image")
        for channel in shown
    ]
    return [[Panel("heat map", heat_map)], maps]


def _biases(subject: Subject, side: int) -> list[list[Panel]]:
    """What the patch in the middle adds to its scores with all others, for the first heads."""
    alone = subject.alone
    q, k = (x.expand(-1, -1, side * side, -1) for x in drawn(alone, 1))
    at = Positions.image(side, side)
    term = alone.layer.double().scores(q, k, at, at)
    assert term is not None
    with torch.no_grad():
        scores_HPP = dense(term, q, k)[0].numpy()
    middle = _middle(side)
    panels = [
        _map(
            "bias by offset",
            scores_HPP[head, middle].reshape(side, side),
            "added to the score",
            f"Head {head}, query at patch {_named(middle, side)}",
        )
        for head in range(min(HEADS, len(scores_HPP)))
    ]
    return [panels[:2], panels[2:]] if len(panels) > 2 else [panels]


def _decay(subject: Subject, side: int) -> list[list[Panel]]:
    """The mean score of a vector with itself, from the patch in the middle; and a vector of ones, turned."""
    alone, middle = subject.alone, _middle(side)
    generator = torch.Generator().manual_seed(1)
    x_NHD = torch.randn(VECTORS, 1, alone.head_size, generator=generator, dtype=torch.float64)
    at, layer = Positions.image(side, side), alone.layer.double()
    x_NHPD = x_NHD[:, :, None].expand(-1, -1, side * side, -1)
    q, k = layer.rotate(x_NHPD, at, "query"), layer.rotate(x_NHPD, at, "key")
    score_NP = (q[:, 0, middle, None] * k[:, 0]).sum(-1) / (x_NHD**2).sum(-1)
    ones = torch.ones(1, 1, side * side, alone.head_size, dtype=torch.float64)
    turned_PD = layer.rotate(ones, at, "query")[0, 0].numpy()

    def turned(axes: "Axes") -> None:
        signed_map(axes, turned_PD, "value")
        axes.set(
            xlabel="dimension of the head", ylabel="patch, row by row", title="A query of ones, rotated to its patch"
        )

    mean = _map(
        "decay",
        score_NP.mean(0).reshape(side, side).numpy(),
        "score, 1 = not rotated",
        f"Mean score of a vector with itself, query at patch {_named(middle, side)}",
    )
    return [[mean, Panel("rotated vector", turned)]]


def _middle(side: int) -> int:
    return side // 2 * side + side // 2


def _named(patch: int, side: int) -> str:
    return f"(row {patch // side}, column {patch % side})"


def _map(kind: str, values_RC: Array, label: str, title: str) -> Panel:
    """A number for every patch of the image, in its place."""

    def draw(axes: "Axes") -> None:
        signed_map(axes, values_RC, label)
        axes.set(xlabel="column", ylabel="row", title=title)

    return Panel(kind, draw)

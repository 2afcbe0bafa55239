"""Encodings of images: their vectors and their likeness, biases by offset and decay, as maps over rows and columns."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.encodings.positions import Positions
from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.plots import wavelengths
from posexport.study.plots.panels import (
    Array,
    Group,
    Panel,
    PanelRow,
    Subject,
    evenly,
    heat_map,
    plain_map,
    scale,
    whole_ticks,
)
from posexport.study.plots.vectors import cosines
from posexport.study.shift_check.relative import dense, drawn
from posexport.study.shift_check.sinusoid import position_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VECTORS = 256
CAPTION = "Likeness that is highest around the patch itself lets attention find neighbours in rows and columns."
BIAS = "One colour scale for all: a head that is highest at offset 0 makes near patches count more."
DECAY = "A mean that falls away from the query's patch makes near patches count more."
#: most heads of a bias with a map, maps in a row, layers of a checkpoint
HEADS, IN_A_ROW, LAYERS = 12, 6, 4
#: an attention bias by offset, [H, 2 rows - 1, 2 columns - 1], or by patch, [H, rows, columns]
Maps = tuple[Array, bool]


def groups(subject: Subject) -> list[Group]:
    """The panels of every hook that the encoding acts through."""
    alone = subject.alone
    panels: list[Group] = []
    if alone.has("embed"):
        panels += _vectors(subject)
    if alone.has("scores"):
        panels += _biases(subject)
    if alone.has("rotate"):
        panels += [*wavelengths.groups(subject), *_decay(subject)]
    return panels


def grid(alone: EncodingAlone, length: int) -> tuple[int, int]:
    """Rows and columns of the image that is shown: the trained ones, a window, or a square of ``length`` patches."""
    settings = alone.layer.parameters_given
    rows, columns = settings.get("rows"), settings.get("columns")
    if isinstance(rows, int) and isinstance(columns, int):
        return rows, columns
    side = min(math.isqrt(length), alone.layer.window or length)
    return side, side


def _vectors(subject: Subject) -> list[Group]:
    """The vectors of all patches; the cosines of two patches with all others; two dimensions over the image."""
    rows, columns = grid(subject.alone, subject.length)
    prefix = subject.alone.layer.parameters_given.get("prefix")
    prefix = prefix if isinstance(prefix, int) else 0
    # the vectors of patches, without prefix tokens, and their similarity
    at = Positions.image(rows, columns, prefix=prefix)
    all_PC, made_of = position_vectors(subject.alone, rows * columns + prefix, at)
    vectors_PC = all_PC[prefix:]
    cosine_PP = cosines(vectors_PC)
    middle = _middle(rows, columns)
    channels = vectors_PC.shape[1]

    def whole(axes: "Axes") -> None:
        heat_map(axes, vectors_PC, "value")
        axes.set(xlabel="dimension", ylabel="patch, row by row", title=f"Every patch's vector, {made_of}")
        whole_ticks(axes)

    similarity = [
        _map(
            "similarity",
            cosine_PP[patch].reshape(rows, columns),
            "cosine",
            f"Likeness to patch {_named(patch, columns)}",
        )
        for patch in (middle, 0)
    ]
    # the first dimension of each half: one half has the column, one the row
    shown = sorted({0, channels // 2})
    over = [
        _map("dimension", vectors_PC[:, channel].reshape(rows, columns), "value", f"Dimension {channel} over the image")
        for channel in shown
    ]
    return [Group([PanelRow([Panel("heat map", whole)], 3.6), PanelRow(similarity), PanelRow(over)], CAPTION)]


def offsets(alone: EncodingAlone, rows: int, columns: int) -> Maps:
    """The attention bias by offset and head.

    By patch, for the query in the middle, where pairs of the same offset have different biases.
    """
    q, k = (x.expand(-1, -1, rows * columns, -1) for x in drawn(alone, 1))
    at = Positions.image(rows, columns)
    term = alone.layer.double().scores(q, k, at, at)
    assert term is not None
    with torch.no_grad():
        scores_HPP = dense(term, q, k)[0].numpy()
    heads = len(scores_HPP)
    row_P, column_P = np.divmod(np.arange(rows * columns), columns)
    down_PP = row_P[:, None] - row_P + rows - 1
    across_PP = column_P[:, None] - column_P + columns - 1
    map_HRC = np.zeros((heads, 2 * rows - 1, 2 * columns - 1))
    map_HRC[:, down_PP, across_PP] = scores_HPP
    if np.abs(map_HRC[:, down_PP, across_PP] - scores_HPP).max() < 1e-9 * max(1.0, np.abs(scores_HPP).max()):
        return map_HRC, True
    return scores_HPP[:, _middle(rows, columns)].reshape(heads, rows, columns), False


def _biases(subject: Subject) -> list[Group]:
    """A map a head, all on one colour scale; of a checkpoint with many layers for some of them."""
    names = [list(subject.by_layer)[n] for n in evenly(len(subject.by_layer), LAYERS)]
    maps = {name: offsets(subject.by_layer[name], *grid(subject.by_layer[name], subject.length)) for name in names}
    shared = scale([map_HRC for map_HRC, _ in maps.values()])
    some = "" if len(names) == len(subject.by_layer) else f"{len(names)} of {len(subject.by_layer)} layers are shown. "
    groups_of_layers = []
    for name, (map_HRC, by_offset) in maps.items():
        heads = min(HEADS, len(map_HRC))
        cut = [list(range(heads))[n : n + IN_A_ROW] for n in range(0, heads, IN_A_ROW)]
        rows = [
            PanelRow(
                [_of_head(map_HRC, head, shared, by_offset) for head in panel_names], 2.0, bar="added to the score"
            )
            for panel_names in cut
        ]
        count = f"heads 0 to {heads - 1} of {len(map_HRC)}" if heads < len(map_HRC) else "all heads"
        caption = some + BIAS if name == names[-1] else ""
        groups_of_layers.append(
            Group(rows, caption, f"{name}: {count}" if name else "" if heads == len(map_HRC) else count)
        )
    return groups_of_layers


def _of_head(map_HRC: Array, head: int, shared: dict[str, object], by_offset: bool) -> Panel:
    rows, columns = map_HRC.shape[1:]
    down, across = ((rows - 1) // 2, (columns - 1) // 2) if by_offset else (0, 0)
    ends = (-across - 0.5, columns - across - 0.5, rows - down - 0.5, -down - 0.5)

    def draw(axes: "Axes") -> None:
        plain_map(axes, map_HRC[head], extent=ends, **shared)
        # the same for rows and columns, said where there is room
        which = ("offset", "offset, query minus key") if by_offset else ("of the key", "of the key")
        axes.set(xlabel=f"column {which[0]}", ylabel=f"row {which[1]}", title=f"head {head}")
        whole_ticks(axes)

    return Panel("bias by offset", draw)


def _decay(subject: Subject) -> list[Group]:
    """The mean score of a vector with itself, from the patch in the middle; and a vector of ones, rotated."""
    alone = subject.alone
    rows, columns = grid(alone, subject.length)
    middle = _middle(rows, columns)
    # random vectors, rotated to every patch, against themselves at the middle patch
    generator = torch.Generator().manual_seed(1)
    x_NHD = torch.randn(VECTORS, 1, alone.head_size, generator=generator, dtype=torch.float64)
    at, layer = Positions.image(rows, columns), alone.layer.double()
    x_NHPD = x_NHD[:, :, None].expand(-1, -1, rows * columns, -1)
    q, k = layer.rotate(x_NHPD, at, "query"), layer.rotate(x_NHPD, at, "key")
    score_NP = (q[:, 0, middle, None] * k[:, 0]).sum(-1) / (x_NHD**2).sum(-1)
    mean_P = score_NP.mean(0).numpy()
    ones = torch.ones(1, 1, rows * columns, alone.head_size, dtype=torch.float64)
    rotated_PD = layer.rotate(ones, at, "query")[0, 0].numpy()

    def draw_rotated(axes: "Axes") -> None:
        heat_map(axes, rotated_PD, "value")
        axes.set(
            xlabel="dimension of the head", ylabel="patch, row by row", title="A query of ones, rotated to its patch"
        )
        whole_ticks(axes)

    mean = _map(
        "decay",
        mean_P.reshape(rows, columns),
        "score, 1 = not rotated",
        f"Score of a vector with itself, query at {_named(middle, columns)}",
    )
    return [Group([PanelRow([mean, Panel("rotated vector", draw_rotated)])], DECAY)]


def _middle(rows: int, columns: int) -> int:
    return rows // 2 * columns + columns // 2


def _named(patch: int, columns: int) -> str:
    return f"(row {patch // columns}, column {patch % columns})"


def _map(kind: str, values_RC: Array, label: str, title: str) -> Panel:
    """A number for every patch of the image, in its place."""

    def draw(axes: "Axes") -> None:
        heat_map(axes, values_RC, label)
        axes.set(xlabel="column", ylabel="row", title=title)
        whole_ticks(axes)

    return Panel(kind, draw)

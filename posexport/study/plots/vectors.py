"""The vectors of positions: a heat map with slices, and the cosine similarity of two positions."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from posexport.encodings.positions import Positions
from posexport.study.plots.panels import (
    Array,
    Group,
    Panel,
    PanelRow,
    Subject,
    heat_map,
    legend_beside,
    of_lines,
    whole_ticks,
)
from posexport.study.shift_check.records import positions_from
from posexport.study.shift_check.sinusoid import claims_sinusoid, position_vectors, shift_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def cosines(vectors_TC: Array) -> Array:
    """[T, T]; a vector of zeros is like none."""
    size_T = np.maximum(np.linalg.norm(vectors_TC, axis=1), np.finfo(np.float64).tiny)
    unit_TC = vectors_TC / size_T[:, None]
    return np.asarray(np.clip(unit_TC @ unit_TC.T, -1, 1))


def likeness_panels(vectors_TC: Array, what: str, first: int = 0) -> tuple[Panel, Panel]:
    """The matrix of cosines, and its diagonals' means. ``first``: what the first vector's position is called."""
    cosine_TT = cosines(vectors_TC)
    last = first + len(cosine_TT) - 1

    def matrix(axes: "Axes") -> None:
        heat_map(axes, cosine_TT, "cosine", extent=(first - 0.5, last + 0.5, last + 0.5, first - 0.5))
        axes.set(xlabel=what, ylabel=what, title=f"How alike the vectors of two {what}s are")
        whole_ticks(axes)

    def decay(axes: "Axes") -> None:
        diagonals = [np.diagonal(cosine_TT, k) for k in range(len(cosine_TT))]
        low, high = np.array([np.quantile(d, [0.1, 0.9]) for d in diagonals]).T
        colour = of_lines(1)[0]
        axes.fill_between(
            range(len(low)), low, high, alpha=0.25, linewidth=0, color=colour, label="10 to 90 %\nof pairs"
        )
        axes.plot([float(d.mean()) for d in diagonals], linewidth=1.4, color=colour, label="mean")
        axes.set(xlabel=f"difference of two {what}s", ylabel="cosine", title="Likeness against the difference")
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        legend_beside(axes)

    return Panel("similarity", matrix), Panel("likeness by distance", decay)


#: inches
HEAT_MAP, SLICE = 3.6, 2.3
#: dimensions of learned vectors that are drawn over the positions: those that change most, but for a few positions
MOST_CHANGED = 4
CAPTION = "Likeness that falls away from the diagonal shows neighbours; diagonals of one colour: distance alone counts."
ALONE = "One position, or one without a vector, has no other to be compared with."


def groups(subject: Subject) -> list[Group]:
    """The heat map, one position over its dimensions on the same axis, one dimension over the positions, likeness."""
    vectors_TC, made_of = position_vectors(subject.alone, subject.length, _positions(subject))
    curves = _curves(subject, vectors_TC)

    def whole(axes: "Axes") -> None:
        heat_map(axes, vectors_TC, "value")
        axes.set(xlabel="dimension", ylabel="position", title=f"Every position's vector, {made_of}")
        whole_ticks(axes)

    def of_positions(axes: "Axes") -> None:
        positions, channels = vectors_TC.shape
        shown = sorted({min(1, positions - 1), positions - 1})
        for position, colour in zip(shown, of_lines(len(shown)), strict=True):
            for name, channels_P, style in curves:
                axes.plot(
                    channels_P,
                    vectors_TC[position, channels_P],
                    style,
                    label=f"position {position}{name}",
                    color=colour,
                    linewidth=1.2,
                    markersize=3,
                )
        axes.set(xlabel="dimension", ylabel="value", title="One position over the dimensions")
        axes.set_xlim(-0.5, channels - 0.5)
        _finish(axes)

    def of_dimensions(axes: "Axes") -> None:
        shown = _channels(subject, vectors_TC)
        for channel, colour in zip(shown, of_lines(len(shown)), strict=True):
            axes.plot(vectors_TC[:, channel], label=f"dimension {channel}", linewidth=1.2, color=colour)
        axes.set(xlabel="position", ylabel="value", title="One dimension over the positions")
        _finish(axes)

    rows = [
        PanelRow([Panel("heat map", whole)], HEAT_MAP),
        PanelRow([Panel("slice of positions", of_positions)], SLICE),
    ]
    # similarity only where vectors can be compared
    dimension = Panel("slice of dimensions", of_dimensions)
    if len(vectors_TC) < 2 or not _comparable(vectors_TC):
        return [Group([*rows, PanelRow([dimension])], ALONE)]
    similarity, decay = likeness_panels(vectors_TC, "position")
    rows.append(PanelRow([similarity, dimension]))
    if subject.learned:
        rows.append(PanelRow([decay, _sizes(vectors_TC)]))
    return [Group(rows, CAPTION)]


def _comparable(vectors_TC: Array) -> bool:
    return bool((np.linalg.norm(vectors_TC, axis=1) > 0).all())


def _positions(subject: Subject) -> Positions | None:
    return positions_from(subject.first, subject.length) if subject.first else None


def _curves(subject: Subject, vectors_TC: Array) -> list[tuple[str, NDArray[np.int64], str]]:
    """Name, channels and style of each curve: sines and cosines are two curves, learned values are dots."""
    channels = np.arange(vectors_TC.shape[1], dtype=np.int64)
    if subject.learned:
        return [("", channels, ".")]
    shift = shift_of(vectors_TC) if claims_sinusoid(subject.alone) and len(vectors_TC) > 1 else None
    if shift is None or len(shift.sine_P) < 2 or np.abs(shift.residual(1)).max() > 1e-6:
        return [("", channels, ".-")]
    return [(",\nsine", shift.sine_P, ".-"), (",\ncosine", shift.cosine_P, ".--")]


def _channels(subject: Subject, vectors_TC: Array) -> list[int]:
    count = vectors_TC.shape[1]
    if subject.learned:
        return sorted(
            int(c)
            for c in np.argsort(-np.ptp(np.quantile(vectors_TC, [0.05, 0.95], axis=0), axis=0), kind="stable")[
                :MOST_CHANGED
            ]
        )
    # the first dimensions of sinusoids turn fast, half way they hardly move: a geometric choice shows both
    return sorted({0, min(1, count - 1), count // 8, count // 4, count // 2})


def _sizes(vectors_TC: Array) -> Panel:
    def draw(axes: "Axes") -> None:
        axes.plot(np.linalg.norm(vectors_TC, axis=1), linewidth=1.2, color=of_lines(1)[0])
        axes.set(xlabel="position", ylabel="Euclidean norm", title="Length of every position's vector")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")

    return Panel("norms", draw)


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    whole_ticks(axes, "x")
    legend_beside(axes)

"""The two slices of the heat map: one position over the dimensions, one dimension over the positions."""

from typing import TYPE_CHECKING

from posexport.plots.base import Panel, Subject, legend_below
from posexport.shift_check.sinusoid import position_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rows(subject: Subject) -> list[list[Panel]]:
    """Both slices, side by side; a few lines each."""
    vectors_TC, _ = position_vectors(subject.alone, subject.length)
    positions, channels = vectors_TC.shape
    # the first dimensions of sinusoids turn fast, half way they hardly move: a geometric choice shows both
    shown_positions = sorted({min(1, positions - 1), positions - 1})
    shown_channels = sorted({0, min(1, channels - 1), channels // 8, channels // 4, channels // 2})

    def of_positions(axes: "Axes") -> None:
        for position in shown_positions:
            axes.plot(vectors_TC[position], label=f"position {position}", linewidth=0.6, marker=".", markersize=5)
        axes.set(xlabel="dimension", ylabel="value", title="One position over the dimensions")
        _finish(axes)

    def of_dimensions(axes: "Axes") -> None:
        for channel in shown_channels:
            axes.plot(vectors_TC[:, channel], label=f"dimension {channel}", linewidth=1.3)
        axes.set(xlabel="position", ylabel="value", title="One dimension over the positions")
        _finish(axes)

    return [[Panel("slice of positions", of_positions), Panel("slice of dimensions", of_dimensions)]]


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    legend_below(axes, columns=5)

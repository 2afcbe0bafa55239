"""The vectors of positions as a heat map: position down, dimension across."""

from typing import TYPE_CHECKING

from posexport.plots.base import Panel, Subject, signed_map
from posexport.shift_check.sinusoid import position_vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rows(subject: Subject) -> list[list[Panel]]:
    """One wide panel."""
    vectors_TC, what = position_vectors(subject.alone, subject.length)

    def draw(axes: "Axes") -> None:
        signed_map(axes, vectors_TC, "value")
        axes.set(xlabel="dimension", ylabel="position", title=f"Every position's vector, {what}")

    return [[Panel("heat map", draw)]]

"""How alike the vectors of two positions (or distances) are: the cosine of the angle between them."""

from typing import TYPE_CHECKING

import numpy as np

from posexport.tools.plots.colours import heat_map, legend_beside, of_lines
from posexport.tools.plots.plot import Array, Panel, whole_ticks

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

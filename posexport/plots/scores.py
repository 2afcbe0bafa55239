"""What is added to the scores: against the distance for every head, and as a matrix for the first."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.plots.base import Panel, Subject, legend_below, signed_map
from posexport.shift_check.base import positions_from
from posexport.shift_check.relative import dense, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: more heads than this get a colour bar, not a legend
NAMED_HEADS = 8


def rows(subject: Subject) -> list[list[Panel]]:
    """Both, side by side.

    A term that meets queries or keys is shown for one query and one key a head, drawn at random and the same at all
    positions. The line is that of the query in the middle.
    """
    alone, length = subject.alone, subject.length
    q, k = (x.expand(-1, -1, length, -1) for x in drawn(alone, 1))
    at = positions_from(0, length)
    term = alone.layer.double().scores(q, k, at, at)
    if term is None:
        return []
    with torch.no_grad():
        scores_HTS = dense(term, q, k)[0].numpy()
    heads, middle = len(scores_HTS), length // 2
    distance_S = middle - np.arange(length)
    meets = bool(term.operator.takes) or alone.layer.reads_input
    what = "Term of the scores, one drawn query and key a head" if meets else "Bias"

    def by_distance(axes: "Axes") -> None:
        from matplotlib import colormaps

        colours = colormaps["viridis"](np.linspace(0, 0.9, heads))
        for head, line_S in enumerate(scores_HTS[:, middle]):
            axes.plot(distance_S, line_S, color=colours[head], label=f"head {head}", linewidth=1.3)
        axes.set(
            xlabel=f"distance, query minus key (query at {middle})",
            ylabel="added to the score",
            title=f"{what}, against the distance",
        )
        axes.grid(alpha=0.3)
        if heads <= NAMED_HEADS:
            legend_below(axes, columns=5)
        else:
            from matplotlib.cm import ScalarMappable
            from matplotlib.colors import ListedColormap, Normalize

            scale = ScalarMappable(Normalize(0, heads - 1), ListedColormap(colours))
            axes.figure.colorbar(scale, ax=axes, pad=0.02).set_label("head")

    def matrix(axes: "Axes") -> None:
        signed_map(axes, scores_HTS[0], "added to the score")
        axes.set(
            xlabel="key's position", ylabel="query's position", title="Head 0, every query and key", aspect="equal"
        )

    kind = "term" if meets else "bias"
    return [[Panel(f"{kind} by distance", by_distance), Panel(f"{kind} matrix", matrix)]]

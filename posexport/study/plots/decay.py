"""The decay of scores under a rotation: the mean score of a vector with itself by distance, and one rotated vector.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.4.3: products fade with the distance.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

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
from posexport.study.shift_check.rotation import rotated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VECTORS = 256
CAPTION = "A mean that falls makes near tokens count more; waves come from pairs of dimensions that turn fast."


def groups(subject: Subject) -> list[Group]:
    """The decay, and a vector of ones rotated to every position."""
    alone, length = subject.alone, subject.length
    generator = torch.Generator().manual_seed(1)
    x_NHD = torch.randn(VECTORS, 1, alone.head_size, generator=generator, dtype=torch.float64)
    x_NHTD = x_NHD[:, :, None].expand(-1, -1, length, -1)
    q, k = rotated(alone, x_NHTD, x_NHTD, 0)
    # the last query against every key: distances from length - 1 down to 0
    product_NT = (q[:, 0, -1:] * k[:, 0]).sum(-1).flip(-1)
    score_NT: Array = (product_NT / (x_NHD**2).sum(-1)).numpy()
    ones = torch.ones(1, 1, length, alone.head_size, dtype=torch.float64)
    rotated_TD = rotated(alone, ones, ones, 0)[0][0, 0].numpy()

    def draw_decay(axes: "Axes") -> None:
        low, high = np.quantile(score_NT, [0.1, 0.9], axis=0)
        colour = of_lines(1)[0]
        axes.fill_between(
            range(length), low, high, alpha=0.25, label="10 to 90 %\nof vectors", linewidth=0, color=colour
        )
        axes.plot(score_NT.mean(0), linewidth=1.5, label=f"mean of {VECTORS}\nrandom\nvectors", color=colour)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(
            xlabel="distance, query minus key",
            ylabel="score, 1 = not rotated",
            title="Score of a vector with itself",
        )
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        legend_beside(axes)

    def draw_rotated(axes: "Axes") -> None:
        heat_map(axes, rotated_TD, "value")
        axes.set(xlabel="dimension of the head", ylabel="position", title="A query of ones, rotated to its position")
        whole_ticks(axes)

    row = PanelRow([Panel("decay", draw_decay), Panel("rotated vector", draw_rotated)])
    return [Group([row], CAPTION)]

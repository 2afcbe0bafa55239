"""What a picture is made of: panels in rows, each drawn on axes of its own.

Shape letters: T queries or positions, S keys, C channels, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.sources.encoding_alone import EncodingAlone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
#: zero is white, signs are colours
SIGNED = "RdBu_r"


@dataclass(frozen=True)
class Panel:
    """One pair of axes: ``kind`` names it in tests and pages, ``draw`` fills it."""

    kind: str
    draw: "Callable[[Axes], None]"


@dataclass(frozen=True)
class Subject:
    """What is drawn: an encoding, with the number of positions to show."""

    alone: EncodingAlone
    length: int


def signed_map(axes: "Axes", values: Array, label: str, **options: Any) -> None:
    """A heat map with zero in the middle of its colours, and a colour bar."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    image = axes.imshow(
        values, cmap=SIGNED, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest", **options
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(label)


def legend_below(axes: "Axes", *, columns: int = 3) -> None:
    """The names of the lines under the axes, where they hide none."""
    axes.legend(fontsize="small", ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)

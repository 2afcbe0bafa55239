"""The parts of a picture: groups of rows of panels. A panel is one pair of axes, a group has one caption.

Shape letters: T queries or positions, S keys, C channels, H heads, D dimensions of a head, W distances.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.sources.encoding_alone import EncodingAlone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

#: inches: the height of a row of two panels, which makes them square
SIDE = 4.25


@dataclass(frozen=True)
class Panel:
    """One pair of axes: ``kind`` names it in tests and pages, ``draw`` fills it."""

    kind: str
    draw: "Callable[[Axes], None]"


@dataclass(frozen=True)
class Row:
    """Panels side by side; one alone is as wide as two. ``height``: about that of the axes, in inches.

    ``bar``: the label of one colour bar for maps that share it and their vertical axis; empty: each has what it draws.
    """

    panels: Sequence[Panel]
    height: float = SIDE
    bar: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that show one thing, and one line on how to read them.

    ``heading``: what is shown, where a picture shows several things (the encoder's bias, the decoder's).
    """

    rows: Sequence[Row]
    caption: str
    heading: str = ""


@dataclass(frozen=True)
class Drawing:
    """All of a picture: its groups, title, a sentence below that, and where the encoding or the weights are from."""

    groups: Sequence[Group]
    title: str
    summary: str
    source: str


@dataclass(frozen=True)
class Subject:
    """What is drawn: an encoding, with the number of positions to show.

    Attributes:
        alone: the encoding; of a checkpoint that of the first layer.
        length: how many positions.
        trained: the weights are a checkpoint's. Untrained ones are random.
        layers: of a checkpoint whose layers have parameters of their own: all of them, by what to call them.
        first: position of the first token (RoBERTa's tables begin with rows that no token uses).
    """

    alone: EncodingAlone
    length: int
    trained: bool = False
    layers: dict[str, EncodingAlone] = field(default_factory=dict)
    first: int = 0

    @property
    def learned(self) -> bool:
        return bool(list(self.alone.layer.parameters()))

    @property
    def random(self) -> bool:
        """Whether what is drawn is random numbers, not what a formula or training made."""
        return self.learned and not self.trained

    @property
    def by_layer(self) -> dict[str, EncodingAlone]:
        """`layers`, or the encoding alone without a name."""
        return self.layers or {"": self.alone}


def evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of 0 .. count - 1, the first and the last among them."""
    return sorted({round(n) for n in np.linspace(0, count - 1, min(count, most))})


def number(value: float) -> str:
    """A number as captions write it: two digits, a plain zero, a true minus sign."""
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
    return text.replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")


def whole_ticks(axes: "Axes", which: str = "both") -> None:
    """Ticks at whole numbers only: positions, dimensions, distances, heads."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis) if which == "both" else (getattr(axes, f"{which}axis"),):
        axis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


Options = dict[str, Any]

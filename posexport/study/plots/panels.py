"""The parts of a picture (groups of rows of panels) and what panels draw with: colours, maps, colour bars, legends.

Shape letters: T queries or positions, S keys, C channels, H heads, D dimensions of a head, W distances.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.pages.svg import colour_limit
from posexport.sources.encoding_alone import EncodingAlone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.image import AxesImage

Array = NDArray[np.float64]

#: inches: the height of a row of two panels, which makes them square
SIDE = 4.25


@dataclass(frozen=True)
class Panel:
    """One pair of axes: ``kind`` names it in tests and pages, ``draw`` fills it."""

    kind: str
    draw: "Callable[[Axes], None]"


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side; one alone is as wide as two. ``height``: of the axes, approximately, in inches.

    ``bar``: the label of one colour bar for maps that share it and their vertical axis; empty: each has what it draws.
    """

    panels: Sequence[Panel]
    height: float = SIDE
    bar: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that show one thing, and one line on how to read them.

    ``heading``: for a picture with several subjects (the encoder's bias, the decoder's).
    """

    rows: Sequence[PanelRow]
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
    """The subject of a picture: an encoding, and the number of positions to show.

    Attributes:
        alone: the encoding; for a checkpoint, the first layer's.
        length: how many positions.
        trained: the weights are a checkpoint's. Untrained ones are random.
        layers: by name, for a checkpoint with different parameters in each layer.
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
        """Whether the values are random: learned parameters that were not trained."""
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

#: no order, each at least three times as dark as white (WCAG 2.2, 1.4.11), the first eight safe for red-green colour
#: blindness
UNORDERED = (
    "#0072b2",
    "#d55e00",
    "#00825f",
    "#b0408f",
    "#7a5c00",
    "#3b3b98",
    "#2a8fbd",
    "#111111",
    "#b2182b",
    "#5a7d00",
    "#7b4ab5",
    "#777777",
)
#: values of both signs: zero is white, signs are colours; of one sign: zero is white, one hue
SIGNED, NEGATIVE, POSITIVE = "RdBu_r", "Blues_r", "Reds"


def of_lines(count: int) -> list[Any]:
    """Colours of ``count`` lines without an order, `UNORDERED`; of more lines than these, again from the first."""
    return [UNORDERED[n % len(UNORDERED)] for n in range(count)]


def of_layers(count: int) -> list[Any]:
    """Colours from dark to less dark for what has an order."""
    from matplotlib import colormaps

    return list(colormaps["plasma"](np.linspace(0, 0.7, count)))


def robust(values: Array) -> Array:
    """``values`` cut to the size that all but a few have, where those are far larger; else as they are."""
    limit = colour_limit(values)
    return np.clip(values, -limit, limit)


def scale(values: Sequence[Array] | Array) -> dict[str, Any]:
    """Colour map and its ends for all ``values`` together: one hue if they have one sign, two with white at zero."""
    low = min((float(np.min(v)) for v in values if np.size(v)), default=0.0)
    high = max((float(np.max(v)) for v in values if np.size(v)), default=0.0)
    largest = max(abs(low), abs(high)) or 1.0
    if high <= 0 and low < 0:
        return {"cmap": NEGATIVE, "vmin": -largest, "vmax": 0.0}
    if low >= 0 and high > 0:
        return {"cmap": POSITIVE, "vmin": 0.0, "vmax": largest}
    return {"cmap": SIGNED, "vmin": -largest, "vmax": largest}


def heat_map(axes: "Axes", values: Array, label: str, **options: Any) -> None:
    """A map of numbers with its colour bar; ``options``: of imshow, `scale` of ``values`` unless they say otherwise."""
    image = plain_map(axes, values, **{**scale([robust(values)]), **options})
    colour_bar(axes, image, label)


def plain_map(axes: "Axes", values: Array, **options: Any) -> "AxesImage":
    """A map of numbers without a colour bar."""
    chosen = {**scale([values]), "aspect": "auto", "interpolation": "nearest", **options}
    return axes.imshow(values, **chosen)


def colour_bar(axes: "Axes", image: "AxesImage", label: str) -> None:
    """Adds a colour bar close to the right of the axes, pointed at an end beyond which there are values."""
    low, high = image.get_clim()
    shown = np.asarray(image.get_array())
    beyond = (bool(shown.min() < low), bool(shown.max() > high))
    ends = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    place, figure = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None
    assert figure is not None
    # an inset stays close to its axes if a legend in the column needs more room; all bars are equally wide
    share = len(place.colspan) / place.get_gridspec().ncols
    inset = axes.inset_axes((1 + 0.01 / share, 0, 0.015 / share, 1))
    bar = figure.colorbar(image, cax=inset, extend=ends, extendfrac=0.03)
    thousands(bar.ax.yaxis)
    bar.set_label(label, labelpad=3)


def thousands(axis: "Axis") -> None:
    """Ticks of a mask's numbers in thousands, so that they do not push the label out of the picture."""
    if max(map(abs, axis.get_view_interval())) >= 1e4:
        axis.set_major_formatter(lambda value, _: f"{value / 1000:g}k".replace("-", "\N{MINUS SIGN}"))


def legend_beside(axes: "Axes") -> None:
    """The names of the lines right of the axes, where they cover nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, handlelength=1.3, handletextpad=0.5)

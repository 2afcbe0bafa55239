"""The positions that a bundle's graph computes, for a module of a user's, which has no encoding of the catalogue."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.inspect.report.positions import LENGTH, Positions, positions
from posexport.run.bundle.manifest import Manifest
from posexport.study.plots.panels import (
    Array,
    Drawing,
    Group,
    Panel,
    PanelRow,
    heat_map,
    legend_beside,
    of_lines,
    robust,
    scale,
    whole_ticks,
)
from posexport.study.plots.scores import ADDED, BIAS, IN_A_ROW, NAMED_HEADS
from posexport.study.plots.vectors import CAPTION, HEAT_MAP, likeness_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUMMARY = "Computed by the graph for one row of tokens without padding, where positions meet the content."
_HEADS = 2 * IN_A_ROW
_MASKED = " Places without a colour are masked."


def pictures(directory: Path, manifest: Manifest, length: int | None) -> Drawing:
    """The drawing of the graphs of a bundle.

    Raises:
        PosexportError: they have no vectors, biases or rotations by position, or not as many positions.
    """
    limit = manifest.limits.max_length
    if length is not None and limit is not None and length > limit:
        raise PosexportError(f"--positions must be at most {limit}, the tokens that {directory} takes, got {length}")
    of_files = positions(directory, manifest, length or LENGTH)
    groups = [
        _KINDS[one.kind](one, file if len(of_files) > 1 else "") for file, drawn in of_files.items() for one in drawn
    ]
    if not groups:
        raise PosexportError(
            f"{directory} has no position encoding to show: its graph adds no vectors, biases or rotations by position"
        )
    name = directory.resolve().name
    return Drawing(groups, f"{name}: positions of its graph", SUMMARY, f"Weights: {name} ({manifest.source.name}).")


def _vectors(one: Positions, file: str) -> Group:
    vectors_TC = one.values
    similarity, decay = likeness_panels(vectors_TC, "position")
    whole = _map("heat map", vectors_TC, "value", "Every position's vector", ("dimension", "position"))
    rows = [PanelRow([whole], HEAT_MAP), PanelRow([similarity, decay])]
    return Group(rows, CAPTION, _heading(f"vectors of {vectors_TC.shape[1]} dimensions, added to tokens", one, file))


def _distance(one: Positions, file: str) -> Group:
    heads, count = one.values.shape
    distances = np.arange(one.first, one.first + count)
    if heads <= NAMED_HEADS:
        panel = _lines("bias by distance", one.values, distances, ("distance, query minus key", ADDED))
    else:
        ends = (distances[0] - 0.5, distances[-1] + 0.5, heads - 0.5, -0.5)
        panel = _map("bias by distance", one.values, ADDED, "Every head", ("distance, query minus key", "head"), ends)
    return Group([PanelRow([panel])], _bias_caption(one), _heading(f"bias by distance, {_heads(heads)}", one, file))


def _pairs(one: Positions, file: str) -> Group:
    return _maps(one, file, "bias matrix", "bias of pairs", ("key's position", "query's position"))


def _grid(one: Positions, file: str) -> Group:
    return _maps(one, file, "bias by offset", "bias by offset in the image", ("columns away", "rows away"))


def _maps(one: Positions, file: str, kind: str, what: str, labels: tuple[str, str]) -> Group:
    heads = len(one.values)
    ends = None
    if one.kind == "grid":
        rows, columns = one.values.shape[1:]
        ends = (-columns / 2, columns / 2, rows / 2, -rows / 2)
    panels = [
        _map(kind, values, ADDED, f"Head {head} of {heads}", labels, ends)
        for head, values in enumerate(one.values[:_HEADS])
    ]
    grid = [PanelRow(panels[n : n + 2]) for n in range(0, len(panels), 2)]
    return Group(grid, _bias_caption(one), _heading(f"{what}, {_heads(heads)}", one, file))


def _table(one: Positions, file: str) -> Group:
    rows = np.arange(one.first, one.first + one.values.shape[1])
    values = one.values if len(one.values) <= NAMED_HEADS else one.values.mean(0)[None]
    label = "distance, query minus key" if one.first else "row"
    panel = _lines("lengths", values, rows, (label, "Euclidean norm"))
    caption = "Lengths of the vectors that queries or keys are multiplied by."
    return Group([PanelRow([panel])], caption, _heading(f"table of {len(rows)} learned vectors", one, file))


def _rotation(one: Positions, file: str) -> Group:
    panel = _map("angles", np.cos(one.values), "cosine", "Cosine of the angle", ("pair of dimensions", "position"))
    caption = "Fast pairs tell neighbours apart, slow pairs tell near from far."
    pairs = one.values.shape[1]
    return Group([PanelRow([panel])], caption, _heading(f"rotation of {pairs} pairs of dimensions", one, file))


_KINDS: dict[str, Callable[[Positions, str], Group]] = {
    "vectors": _vectors,
    "distance": _distance,
    "pairs": _pairs,
    "grid": _grid,
    "table": _table,
    "rotation": _rotation,
}


def _map(
    kind: str,
    values: Array,
    label: str,
    title: str,
    names: tuple[str, str],
    ends: tuple[float, float, float, float] | None = None,
) -> Panel:
    def draw(axes: "Axes") -> None:
        finite = np.where(np.isfinite(values), values, np.nan)
        colours = scale([robust(values[np.isfinite(values)])])
        heat_map(axes, finite, label, extent=ends, **colours)
        axes.set(xlabel=names[0], ylabel=names[1], title=title)
        whole_ticks(axes)

    return Panel(kind, draw)


def _lines(kind: str, values_HW: Array, at_W: NDArray[np.int64], names: tuple[str, str]) -> Panel:
    def draw(axes: "Axes") -> None:
        heads = len(values_HW)
        for head, colour in enumerate(of_lines(heads)):
            finite = np.where(np.isfinite(values_HW[head]), values_HW[head], np.nan)
            axes.plot(at_W, finite, color=colour, label=f"head {head}", linewidth=1.3)
        axes.set(xlabel=names[0], ylabel=names[1], title="Every head" if heads > 1 else "All heads")
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        if heads > 1:
            legend_beside(axes)

    return Panel(kind, draw)


def _bias_caption(one: Positions) -> str:
    return BIAS if np.isfinite(one.values).all() else BIAS + _MASKED


def _heads(count: int) -> str:
    return f"{count} heads" if count > 1 else "1 head"


def _heading(what: str, one: Positions, file: str) -> str:
    nodes = f"{one.uses} nodes" if one.uses > 1 else "1 node"
    return f"{file}: {what}, read by {nodes}" if file else f"{what[0].upper()}{what[1:]}, read by {nodes}"

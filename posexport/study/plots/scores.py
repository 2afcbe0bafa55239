"""Attention biases: against the distance for every head, and as a matrix; for several layers, a map of each."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.plots.distance_vectors import met_vectors
from posexport.study.plots.panels import (
    UNORDERED,
    Array,
    Group,
    Panel,
    PanelRow,
    Subject,
    colour_bar,
    evenly,
    heat_map,
    legend_beside,
    of_lines,
    plain_map,
    scale,
    thousands,
    whole_ticks,
)
from posexport.study.shift_check.records import positions_from
from posexport.study.shift_check.relative import dense, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: more heads than these are a map, not lines
NAMED_HEADS = len(UNORDERED)
#: maps of layers in a row, and of all
IN_A_ROW, LAYERS = 4, 8
ADDED = "added to the score"
BIAS = "Higher means more attention: a head that falls on both sides of distance 0 makes near tokens count more."
TERM = "For one random query and key of each head; diagonals of one colour: keys differ by their distance alone."


@dataclass(frozen=True)
class Scores:
    """What one layer adds to the scores of one query and one key a head, at all positions.

    ``meets``: queries, keys or the input decide with. ``distance_S``: of the query in the middle to every key.
    """

    scores_HTS: Array
    meets: bool

    @property
    def distance_S(self) -> Array:
        """Query minus key, for the query in the middle."""
        length = self.scores_HTS.shape[-1]
        return np.asarray(length // 2 - np.arange(length, dtype=np.float64))

    @property
    def middle_HS(self) -> Array:
        """The row of the query in the middle."""
        return np.asarray(self.scores_HTS[:, self.scores_HTS.shape[1] // 2])


def scores_of(alone: EncodingAlone, length: int) -> Scores | None:
    """None where it adds nothing."""
    q, k = (x.expand(-1, -1, length, -1) for x in drawn(alone, 1))
    at = positions_from(0, length)
    term = alone.layer.double().scores(q, k, at, at)
    if term is None:
        return None
    with torch.no_grad():
        scores_HTS = dense(term, q, k)[0].numpy()
    return Scores(scores_HTS, bool(term.operator.takes) or alone.layer.reads_input)


def groups(subject: Subject) -> list[Group]:
    """Lines and a matrix; of a checkpoint with several layers, heads against distances for each.

    A term that meets queries or keys is shown for one query and one key a head, drawn at random and the same at all
    positions, which says nothing of a trained model: there `distance_vectors` shows the table.
    """
    first = scores_of(subject.alone, subject.length)
    if first is None or (first.meets and subject.trained and met_vectors(subject.alone, 2) is not None):
        return []
    if len(subject.by_layer) > 1:
        return [_of_layers(subject)]
    kind = "term" if first.meets else "bias"
    by_distance = _lines(first) if len(first.scores_HTS) <= NAMED_HEADS else _heads_map(first)
    panels = [Panel(f"{kind} by distance", by_distance), Panel(f"{kind} matrix", _matrix(first))]
    return [Group([PanelRow(panels)], TERM if first.meets else BIAS)]


def _lines(scores: Scores) -> "Draw":
    def draw(axes: "Axes") -> None:
        middle_HS = scores.middle_HS
        for head, colour in enumerate(of_lines(len(middle_HS))):
            axes.plot(scores.distance_S, middle_HS[head], color=colour, label=f"head {head}", linewidth=1.3)
        axes.set(
            xlabel=f"distance, query minus key (query at {len(scores.distance_S) // 2})",
            ylabel=ADDED,
            title=f"{_what(scores)} against the distance",
        )
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        thousands(axes.yaxis)
        legend_beside(axes)

    return draw


def _heads_map(scores: Scores) -> "Draw":
    def draw(axes: "Axes") -> None:
        _map_of_heads(axes, scores, {})
        axes.set(ylabel="head", title=f"{_what(scores)} of all {len(scores.middle_HS)} heads")
        colour_bar(axes, axes.images[0], ADDED)

    return draw


def _matrix(scores: Scores) -> "Draw":
    def draw(axes: "Axes") -> None:
        heads = len(scores.scores_HTS)
        heat_map(axes, scores.scores_HTS[0], ADDED)
        whose = "Every query and key" if heads == 1 else f"Head 0 of {heads}, every query and key"
        axes.set(xlabel="key's position", ylabel="query's position", title=whose)
        whole_ticks(axes)

    return draw


def _map_of_heads(axes: "Axes", scores: Scores, options: "dict[str, object]") -> None:
    """Heads down, distances across from the keys that come after to those far before."""
    distance_S = scores.distance_S
    heads = len(scores.middle_HS)
    ends = (distance_S.min() - 0.5, distance_S.max() + 0.5, heads - 0.5, -0.5)
    plain_map(axes, scores.middle_HS[:, ::-1], extent=ends, **options)
    axes.set_xlabel("distance, query minus key")
    whole_ticks(axes)


def _of_layers(subject: Subject) -> Group:
    names = [list(subject.by_layer)[n] for n in evenly(len(subject.by_layer), LAYERS)]
    by_name = {name: scores_of(subject.by_layer[name], subject.length) for name in names}
    layers = {name: scores for name, scores in by_name.items() if scores is not None}
    shared = scale([scores.middle_HS for scores in layers.values()])

    def panel(name: str) -> Panel:
        def draw(axes: "Axes") -> None:
            _map_of_heads(axes, layers[name], shared)
            axes.set(ylabel="head", title=name)

        return Panel("bias of a layer", draw)

    cut = [names[n : n + IN_A_ROW] for n in range(0, len(names), IN_A_ROW)]
    rows = [PanelRow([panel(name) for name in panel_names], 2.0, bar=ADDED) for panel_names in cut]
    some = "" if len(names) == len(subject.by_layer) else f"{len(names)} of {len(subject.by_layer)} layers are shown. "
    return Group(rows, some + BIAS)


def _what(scores: Scores) -> str:
    return "Term of a random query and key" if scores.meets else "Bias"


if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[Axes], None]

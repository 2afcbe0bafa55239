"""What is added to the scores: against the distance for every head, and as a matrix; of many layers, a map a layer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.sources.encoding_alone import EncodingAlone
from posexport.tools.plots.colours import (
    UNORDERED,
    colour_bar,
    heat_map,
    legend_beside,
    of_lines,
    plain_map,
    scale,
    thousands,
)
from posexport.tools.plots.distance_vectors import met_vectors
from posexport.tools.plots.plot import Array, Group, Panel, Row, Subject, evenly, number, whole_ticks
from posexport.tools.shift_check.records import positions_from
from posexport.tools.shift_check.relative import dense, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: more heads than these are a map, not lines
NAMED_HEADS = len(UNORDERED)
#: maps of layers in a row, and of all
IN_A_ROW, LAYERS = 4, 8
#: distances that captions call near
NEAR = 8
#: scores as low as this mask a key
MASKED = -1e4


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

    @property
    def distance_alone(self) -> bool:
        """Whether pairs at the same distance get the same."""
        scale_of = np.abs(self.scores_HTS).max(initial=1.0)
        return bool(np.abs(self.scores_HTS[:, 1:, 1:] - self.scores_HTS[:, :-1, :-1]).max(initial=0) < 1e-9 * scale_of)


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
    return [Group([Row(panels)], caption(subject, [first]))]


def _lines(scores: Scores) -> "Draw":
    def draw(axes: "Axes") -> None:
        middle_HS = scores.middle_HS
        for head, colour in enumerate(of_lines(len(middle_HS))):
            axes.plot(scores.distance_S, middle_HS[head], color=colour, label=f"head {head}", linewidth=1.3)
        axes.set(
            xlabel=f"distance, query minus key (query at {len(scores.distance_S) // 2})",
            ylabel="added to the score",
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
        colour_bar(axes, axes.images[0], "added to the score")

    return draw


def _matrix(scores: Scores) -> "Draw":
    def draw(axes: "Axes") -> None:
        heads = len(scores.scores_HTS)
        heat_map(axes, scores.scores_HTS[0], "added to the score")
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

    def panel(name: str, *, last: bool) -> Panel:
        def draw(axes: "Axes") -> None:
            _map_of_heads(axes, layers[name], shared)
            axes.set(ylabel="head", title=name)
            if last:
                colour_bar(axes, axes.images[0], "added to the score")

        return Panel("bias of a layer", draw)

    cut = [names[n : n + IN_A_ROW] for n in range(0, len(names), IN_A_ROW)]
    rows = [Row([panel(name, last=name == part[-1]) for name in part], tight=True) for part in cut]
    some = "" if len(names) == len(subject.by_layer) else f"{len(names)} of {len(subject.by_layer)} layers are shown. "
    return Group(rows, some + caption(subject, list(layers.values())))


def caption(subject: Subject, layers: list[Scores]) -> str:
    """What the numbers say of near and far tokens."""
    start = "Random weights. " if subject.random else ""
    first = layers[0]
    if first.meets:
        if first.distance_alone:
            return f"{start}Every diagonal has one colour: to the same query, keys differ by their distance alone."
        return f"{start}A pair's term depends on more than the distance: on its query, its key or its place."
    middle_HS = np.concatenate([scores.middle_HS for scores in layers])
    heads, distance_S = len(middle_HS), first.distance_S
    if (middle_HS <= MASKED).any() and np.unique(middle_HS).size == 2 and not middle_HS.max():
        open_S = distance_S[(middle_HS > MASKED).any(0)]
        before, after = open_S.max(), -open_S.min()
        return f"Keys more than {before:.0f} before or {after:.0f} after the query are masked; the others get 0."
    if np.ptp(middle_HS, axis=1).max() < 1e-12:
        return f"{start}The same at every distance."
    falls = {side: _falls(middle_HS, sign * distance_S) for side, sign in (("before", 1), ("after", -1))}
    slopes = np.abs(middle_HS).max(axis=1)
    order = "" if heads == 1 else f", most in head {slopes.argmax()}, least in head {slopes.argmin()}"
    many = f"{heads} heads" if len(layers) == 1 else f"{heads} heads of all layers shown"
    if falls["before"] == falls["after"] == heads:
        ending = order if len(layers) == 1 else ""
        return f"{start}Near tokens count more: what is added falls with the distance{ending}."
    if falls["before"] == heads:
        return f"{start}Near tokens count more: of keys before the query, what is added falls with the distance."
    # a decoder's buckets: keys after the query, which it masks, all get what the query itself gets
    one_sided = not np.ptp(middle_HS[:, distance_S <= 0], axis=1).any()
    if one_sided:
        middle_HS, distance_S = middle_HS[:, distance_S >= 0], distance_S[distance_S >= 0]
    reach = max(1, min(NEAR, int(np.abs(distance_S).max()) // 4))
    near_S = np.abs(distance_S) <= reach
    difference_H = middle_HS[:, near_S].mean(1) - middle_HS[:, ~near_S].mean(1)
    more = int((difference_H > 0).sum())
    whose = f"keys up to {reach} before the query" if one_sided else f"tokens up to {reach} away"
    typical = number(float(np.median(np.abs(difference_H))))
    return f"{start}On average {whose} get more than the others in {more} of {many} (median difference {typical})."


def _falls(middle_HS: Array, distance_S: Array) -> int:
    """Of how many heads the numbers never rise, and fall, as ``distance_S`` grows from 0 on."""
    ahead = np.flatnonzero(distance_S >= 0)
    ahead = ahead[np.argsort(distance_S[ahead])]
    steps_HS = np.diff(middle_HS[:, ahead], axis=1)
    return int(((steps_HS <= 1e-12).all(1) & (steps_HS < 0).any(1)).sum())


def _what(scores: Scores) -> str:
    return "Term of a random query and key" if scores.meets else "Bias"


if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[Axes], None]

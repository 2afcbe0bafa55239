"""A relative position table of a checkpoint: the vectors that queries are multiplied with at every distance.

Determined from values, not from the encoding's name: if the term is linear in the query, its values for all unit
vectors are the vector. Shape letters: H heads, D dimensions of a head, W distances from the lowest up.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.plots.panels import (
    Array,
    Group,
    Panel,
    PanelRow,
    Subject,
    evenly,
    heat_map,
    legend_beside,
    of_layers,
    of_lines,
    whole_ticks,
)
from posexport.study.plots.vectors import likeness_panels
from posexport.study.shift_check.records import positions_from
from posexport.study.shift_check.relative import dense

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: lines of layers, or of heads where there is one layer
LINES = 12
CAPTION = "Neighbouring distances with alike vectors are hard to tell apart; a short vector changes scores little."


def groups(subject: Subject) -> list[Group]:
    """The vectors of the first layer and head, their likeness, and the norms of all; of checkpoints only."""
    if not subject.trained:
        return []
    # some layers, with the vectors [H, W, D] of each
    names = [list(subject.by_layer)[n] for n in evenly(len(subject.by_layer), LINES)]
    tables = {name: met_vectors(subject.by_layer[name], subject.length) for name in names}
    first = tables[names[0]]
    if first is None:
        return []
    vectors_HWD, lowest = first
    norms = _norms({name: table for name, table in tables.items() if table is not None}, len(subject.by_layer))
    vectors_WD = vectors_HWD[0]
    shared = all(np.array_equal(vectors_WD, other) for other in vectors_HWD[1:])
    whose = ", ".join(word for word in (names[0], "" if shared else "head 0") if word)

    def whole(axes: "Axes") -> None:
        ends = (lowest - 0.5, lowest + len(vectors_WD) - 0.5, vectors_WD.shape[1] - 0.5, -0.5)
        heat_map(axes, vectors_WD.T, "value", extent=ends)
        title = "What a query meets at every distance"
        axes.set(
            xlabel="distance, query minus key",
            ylabel="dimension of the head",
            title=f"{title} ({whose})" if whose else title,
        )
        whole_ticks(axes)

    similarity, decay = likeness_panels(vectors_WD, "distance", lowest)
    rows = [PanelRow([Panel("distance vectors", whole)], 3.0), PanelRow([similarity, decay]), PanelRow([norms], 2.6)]
    return [Group(rows, CAPTION)]


def met_vectors(alone: EncodingAlone, length: int) -> tuple[Array, int] | None:
    """[H, W, D] and the lowest distance; None where the term is not linear in the query.

    From the first and from the last of ``length`` tokens, which together see every distance.
    """
    keys = positions_from(0, length)
    behind = _from(alone, length - 1, keys, length)
    ahead = _from(alone, 0, keys, length)
    if behind is None or ahead is None:
        return None
    # keys 0 .. length - 1 of query 0 are at distances 0, -1 ..; of the last query at length - 1 .. 0
    low_HWD, high_HWD = ahead[:, ::-1], behind[:, ::-1]
    return np.concatenate([low_HWD, high_HWD[:, 1:]], axis=1), 1 - length


def _from(alone: EncodingAlone, query: int, keys: "object", length: int) -> Array | None:
    from posexport.encodings.positions import Positions

    assert isinstance(keys, Positions)
    at, layer, size = positions_from(query, 1), alone.layer.double(), alone.head_size
    units_DHTD = torch.eye(size, dtype=torch.float64)[:, None, None].expand(-1, alone.heads, 1, -1)
    probe_DHTD = torch.cat([units_DHTD, torch.zeros_like(units_DHTD[:1]), units_DHTD.sum(0, keepdim=True)])
    nothing = torch.zeros(len(probe_DHTD), alone.heads, length, size, dtype=torch.float64)
    if layer.reads_input:
        return None
    with torch.no_grad():
        term = layer.scores(probe_DHTD, nothing, at, keys)
        if term is None or "q" not in term.operator.takes:
            return None
        answer_DHS = dense(term, probe_DHTD, nothing)[:, :, 0].numpy()
    base_HS, answers_DHS, all_HS = answer_DHS[-2], answer_DHS[:-2] - answer_DHS[-2], answer_DHS[-1]
    # linear: the value for the sum of all unit vectors is the sum of the values
    if np.abs(answers_DHS.sum(0) + base_HS - all_HS).max() > 1e-6 * max(1.0, np.abs(all_HS).max()):
        return None
    return np.asarray(answers_DHS.transpose(1, 2, 0))


def _norms(tables: dict[str, tuple[Array, int]], layers: int) -> Panel:
    """A line a layer, the mean over its heads; of one layer a line a head."""
    # label -> norms [W]
    lines: dict[str, Array] = {}
    lowest = 0
    for name, (vectors_HWD, first) in tables.items():
        lowest = first
        norm_HW = np.linalg.norm(vectors_HWD, axis=-1)
        if len(tables) > 1:
            lines[name] = norm_HW.mean(0)
        else:
            same = all(np.array_equal(norm_HW[0], other) for other in norm_HW[1:])
            lines |= {f"head {h}": line for h, line in enumerate(norm_HW[: 1 if same else LINES])}

    # drawn over the distances of the table
    def draw(axes: "Axes") -> None:
        colours = of_layers(len(lines)) if len(tables) > 1 else of_lines(len(lines))
        for (name, line_W), colour in zip(lines.items(), colours, strict=True):
            axes.plot(lowest + np.arange(len(line_W)), line_W, label=name, color=colour, linewidth=1.3)
        some = "" if len(tables) in (1, layers) else f", {len(tables)} of {layers} layers"
        axes.set(
            xlabel="distance, query minus key",
            ylabel="Euclidean norm",
            title=f"Length of the vector at every distance{some}",
        )
        axes.set_ylim(bottom=0)
        axes.set_xlim(lowest - 0.5, -lowest + 0.5)
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        if len(lines) > 1:
            legend_beside(axes)

    return Panel("norms", draw)

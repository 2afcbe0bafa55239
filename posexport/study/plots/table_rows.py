"""The distances of ten tokens, and the row of the table that each takes."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.encodings.encoding import Term
from posexport.study.plots.panels import Array, Group, Panel, PanelRow, Subject, colour_bar
from posexport.study.shift_check.records import positions_from
from posexport.study.shift_check.relative import dense

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = 10
CAPTION = "Pairs with the same number take the same row of the table, and so the same parameters."


def groups(subject: Subject) -> list[Group]:
    """The distances, and the rows of every table; empty for an encoding without a table by pairs."""
    if subject.trained:
        return []
    tables = table_rows(subject, min(TOKENS, subject.alone.layer.limit or TOKENS))
    if not tables:
        return []
    at = np.arange(len(next(iter(tables.values()))[0]), dtype=np.float64)
    distance_TS = at[:, None] - at[None, :]
    panels = [_numbers("distance matrix", "Distance, query minus key", distance_TS)]
    for name, (rows_TS, count) in tables.items():
        title = f"Row of {name}{formula(rows_TS, distance_TS)}, of {count} rows"
        panels.append(_numbers("table rows", title, rows_TS))
    # two in a row, as other panels are
    rows = [PanelRow(panels[n : n + 2]) for n in range(0, len(panels), 2)]
    return [Group(rows, CAPTION)]


def formula(rows_TS: Array, distance_TS: Array) -> str:
    """How rows follow from distances, where that is one addition."""
    shift = rows_TS[0, 0]
    if np.array_equal(rows_TS, distance_TS + shift):
        return f" = distance + {shift:.0f}"
    if np.array_equal(rows_TS, shift - distance_TS):
        return f" = {shift:.0f} - distance"
    return ""


def table_rows(subject: Subject, length: int) -> dict[str, tuple[Array, int]]:
    """Name to [T, S], which row of a table a query and a key take, and how many rows there are.

    Determined from values, not from the encoding's name: a tensor [R, ...] is filled with its row indices while all
    others are zero; if all scores then are integers, it is a table and they are the row indices. Parameters are tried
    first, then the tensors of an operator that takes queries (a table that is fixed).
    """
    alone = subject.alone
    layer, at = alone.layer.double(), positions_from(0, length)
    q = torch.full((1, alone.heads, length, alone.head_size), 1 / alone.head_size, dtype=torch.float64)
    k = torch.zeros_like(q)
    tables: dict[str, tuple[Array, int]] = {}

    def note(name: str, term: Term | None, count: int) -> None:
        scores_TS = np.zeros((1, 1)) if term is None else dense(term, q, k)[0, 0].numpy()
        rows_TS = scores_TS.round()
        if np.abs(scores_TS - rows_TS).max() < 1e-6 and np.ptp(rows_TS) > 0 and rows_TS.min() >= 0:
            tables[name] = rows_TS, count

    # each parameter in turn holds its row indices while all others are zero
    stored = {name: parameter.clone() for name, parameter in layer.named_parameters()}
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2:
            for other in layer.parameters():
                other.zero_()
            parameter.add_(torch.arange(len(parameter))[:, None])
            note(name, layer.scores(q, k, at, at), len(parameter))
    for name, parameter in layer.named_parameters():
        parameter.copy_(stored[name])
    # then the fixed tensors of the term
    term = layer.scores(q, k, at, at)
    if not tables and term is not None and "q" in term.operator.takes:
        for name, tensor in zip(term.operator.own, term.tensors, strict=True):
            if tensor.dim() == 2 and tensor.is_floating_point():
                numbers = torch.arange(len(tensor), dtype=tensor.dtype)[:, None].expand_as(tensor)
                filled = (t if not t.is_floating_point() else torch.zeros_like(t) for t in term.tensors)
                tensors = (numbers if t is tensor else o for t, o in zip(term.tensors, filled, strict=True))
                note(name, replace(term, tensors=tuple(tensors)), len(tensor))
    return tables


def _numbers(kind: str, title: str, values_TS: Array) -> Panel:
    """A matrix with its numbers written in."""

    def draw(axes: "Axes") -> None:
        image = axes.imshow(values_TS, cmap="viridis", aspect="auto", interpolation="nearest")
        low, high = values_TS.min(), values_TS.max()
        for (i, j), value in np.ndenumerate(values_TS):
            dark = value < (low + high) / 2
            text = f"{value:.0f}".replace("-", "\N{MINUS SIGN}")
            axes.text(j, i, text, ha="center", va="center", size=9.5, color="white" if dark else "black")
        axes.set(xlabel="key", ylabel="query", title=title, xticks=range(len(values_TS)), yticks=range(len(values_TS)))
        colour_bar(axes, image, "distance" if kind == "distance matrix" else "row")

    return Panel(kind, draw)

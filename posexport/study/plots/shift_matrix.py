"""The shift matrix T(k) of sinusoids, and how exactly it moves every position by k."""

from typing import TYPE_CHECKING

import numpy as np

from posexport.study.plots.panels import Group, Panel, PanelRow, Subject, heat_map, legend_beside, of_lines, whole_ticks
from posexport.study.shift_check.records import TOLERANCE
from posexport.study.shift_check.sinusoid import claims_sinusoid, position_vectors, shift_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHIFTS = (1, 5, 20)
#: what float64 cannot tell from nothing is drawn as this, on a logarithmic axis
LEAST = 1e-18
#: of larger matrices only the first rows and columns are drawn: blocks of 2 x 2 would be too small to see
LARGEST = 40


def groups(subject: Subject) -> list[Group]:
    """The matrix and its residual; empty for an encoding without sinusoids."""
    if not claims_sinusoid(subject.alone):
        return []
    shift = shift_of(position_vectors(subject.alone, subject.length)[0])
    shifts = [k for k in SHIFTS if k < subject.length]
    if not shifts or not len(shift.sine_P):
        return []
    # T(k) of the middle shift, and the largest residual of each shift by position
    k = shifts[len(shifts) // 2]
    matrix = shift.matrix(k)
    shown = min(len(matrix), LARGEST)
    worst = {step: np.abs(shift.residual(step)).max(axis=1) for step in shifts}

    def draw_matrix(axes: "Axes") -> None:
        heat_map(axes, matrix[:shown, :shown], "entry")
        extent = "" if shown == len(matrix) else f", first {shown} of {len(matrix)} dimensions"
        turn = ", sine and cosine in turn" if shift.layout == "half" else ""
        axes.set(
            xlabel=f"dimension of PE[t]{turn}", ylabel=f"dimension of PE[t + {k}]", title=f"Shift matrix T({k}){extent}"
        )
        whole_ticks(axes)

    def draw_residual(axes: "Axes") -> None:
        for step, colour in zip(shifts, of_lines(len(shifts)), strict=True):
            axes.semilogy(np.maximum(worst[step], LEAST), label=f"k = {step}", linewidth=1.2, color=colour)
        axes.axhline(TOLERANCE, color="black", linestyle="--", linewidth=1, label=f"allowed,\n{TOLERANCE:.0e}")
        axes.set(
            xlabel="position t",
            ylabel="largest difference of a dimension",
            title="|T(k) PE[t] \N{MINUS SIGN} PE[t + k]| in float64",
            ylim=(LEAST / 2, max(10 * TOLERANCE, 10 * max(map(np.max, worst.values())))),
        )
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        legend_beside(axes)

    # the caption has the figure
    largest = float(max(map(np.max, worst.values())))
    if largest <= TOLERANCE:
        caption = f"One matrix of rotations moves every position by {k}: it is off by at most {largest:.0e}."
    else:
        caption = f"No one matrix of rotations moves every position by {k}: it is off by up to {largest:.1g}."
    return [Group([PanelRow([Panel("shift matrix", draw_matrix), Panel("shift residual", draw_residual)])], caption)]

"""The shift matrix T(k) of sinusoids, and how exactly it moves every position by k."""

from typing import TYPE_CHECKING

import numpy as np

from posexport.plots.base import Panel, Subject, signed_map
from posexport.shift_check.base import TOLERANCE
from posexport.shift_check.sinusoid import claims_sinusoid, position_vectors, shift_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHIFTS = (1, 5, 20)
#: what float64 cannot tell from nothing is drawn as this, on a logarithmic axis
LEAST = 1e-18
#: of larger matrices only the first rows and columns are drawn: blocks of 2 x 2 would be too small to see
LARGEST = 40


def rows(subject: Subject) -> list[list[Panel]]:
    """The matrix beside its residual; none where the encoding is no sinusoid, or has no pair to rotate."""
    if not claims_sinusoid(subject.alone):
        return []
    shift = shift_of(position_vectors(subject.alone, subject.length)[0])
    shifts = [k for k in SHIFTS if k < subject.length]
    if not shifts or not len(shift.sine_P):
        return []
    k = shifts[len(shifts) // 2]
    matrix = shift.matrix(k)
    shown = min(len(matrix), LARGEST)

    def draw_matrix(axes: "Axes") -> None:
        signed_map(axes, matrix[:shown, :shown], "entry")
        part = "" if shown == len(matrix) else f", first {shown} of {len(matrix)} dimensions"
        axes.set(
            xlabel="dimension of PE[t]",
            ylabel=f"dimension of PE[t + {k}]",
            title=f"T({k}): a rotation for every sine and cosine{part}",
            aspect="equal",
        )
        if shift.layout == "half":
            axes.set(xlabel="dimension of PE[t], sine and cosine in turn")

    def draw_residual(axes: "Axes") -> None:
        for step in shifts:
            worst_T = np.abs(shift.residual(step)).max(axis=1)
            axes.semilogy(np.maximum(worst_T, LEAST), label=f"k = {step}", linewidth=1.2)
        axes.axhline(TOLERANCE, color="black", linestyle="--", linewidth=1, label=f"allowed, {TOLERANCE:.0e}")
        axes.set(
            xlabel="position t",
            ylabel="largest difference of a dimension",
            title="|T(k) PE[t] - PE[t + k]| in float64",
            ylim=(LEAST / 2, max(10 * TOLERANCE, 10 * max(np.abs(shift.residual(step)).max() for step in shifts))),
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")

    return [[Panel("shift matrix", draw_matrix), Panel("shift residual", draw_residual)]]

"""The wavelengths of a rotation: how many positions each pair of dimensions takes for one turn, scaled and unscaled.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2; scaled schedules: `posexport.encodings.rope`.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from posexport.encodings.rope.rope import Rope
from posexport.encodings.rope.schedule import Schedule
from posexport.study.plots.panels import (
    Array,
    Group,
    Panel,
    PanelRow,
    Subject,
    heat_map,
    legend_beside,
    of_lines,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: a row this many times longer than the original length shows what frequencies that depend on it become
LONG = 4
CAPTION = "Fast pairs tell neighbours apart, slow pairs tell near from far; a pair repeats itself after its wavelength."
SCALED = "Pairs that are stretched turn more slowly, so that longer inputs stay within the angles of training."


def groups(subject: Subject) -> list[Group]:
    """Wavelengths, and the stretch of each pair, or for an unscaled rotation its cosines."""
    if not isinstance(subject.alone.layer, Rope):
        return []
    # frequencies in radians per position, as the schedule scales them and unscaled
    schedule = subject.alone.layer.schedule
    pairs = np.arange(schedule.dim // 2)
    unscaled_F = schedule.base ** (-2.0 * pairs / schedule.dim)
    frequencies = _frequencies(schedule)
    scaled = any(np.abs(frequency_F / unscaled_F - 1).max() > 1e-9 for frequency_F in frequencies.values())
    original = schedule.boundaries[0] if schedule.boundaries else None

    def waves(axes: "Axes") -> None:
        for (name, frequency_F), colour in zip(frequencies.items(), of_lines(len(frequencies)), strict=True):
            turning = frequency_F > 0
            label = name if scaled else "wavelength"
            axes.semilogy(
                pairs[turning], 2 * math.pi / frequency_F[turning], ".-", label=label, color=colour, linewidth=1.4
            )
        if scaled:
            axes.semilogy(pairs, 2 * math.pi / unscaled_F, "--", label="unscaled", color="black", linewidth=1.1)
        if original is not None:
            axes.axhline(original, color="#777777", linestyle=":", label=f"trained for\n{original}")
        axes.set(xlabel="pair of dimensions", ylabel="positions for one turn", title="Wavelength of every pair")
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.yaxis.set_minor_formatter(lambda *_: "")
        if scaled or original is not None:
            legend_beside(axes)

    def stretch(axes: "Axes") -> None:
        for (name, frequency_F), colour in zip(frequencies.items(), of_lines(len(frequencies)), strict=True):
            turning = frequency_F > 0
            axes.plot(
                pairs[turning],
                (unscaled_F / np.where(turning, frequency_F, 1))[turning],
                ".-",
                label=name,
                color=colour,
                linewidth=1.4,
            )
        axes.set(xlabel="pair of dimensions", ylabel="wavelength, 1 = unscaled", title="How far each pair is stretched")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        whole_ticks(axes, "x")
        legend_beside(axes)

    def cosines(axes: "Axes") -> None:
        (frequency_F,) = frequencies.values()
        heat_map(axes, np.cos(np.arange(subject.length)[:, None] * frequency_F), "cosine")
        axes.set(xlabel="pair of dimensions", ylabel="position", title="Cosine of the angle at every position")
        whole_ticks(axes)

    second = Panel("stretch", stretch) if scaled else Panel("angles", cosines)
    return [Group([PanelRow([Panel("wavelengths", waves), second])], SCALED if scaled else CAPTION)]


def _frequencies(schedule: Schedule) -> dict[str, Array]:
    """Radians per position by label: one schedule, or one each for short and for long inputs."""
    if not schedule.by_length or not schedule.boundaries:
        return {"scaled": np.array(schedule.inv_freq, dtype=np.float64)}
    by_length = {}
    for length in (schedule.boundaries[0], LONG * schedule.boundaries[0]):
        ids_1T = torch.arange(length)[None]
        by_length[f"rows of\n{length}"] = schedule.frequencies(ids_1T, torch.float64)[0].numpy()
    return by_length

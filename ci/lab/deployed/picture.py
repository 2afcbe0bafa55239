"""docs/pictures/costs.svg: processor time and peak memory of a conversion against the number of layers."""

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from ci.lab.deployed.make import SHAPES
from ci.lab.deployed.measure import ROOT, rows


def draw() -> None:
    """Draw the shapes that were measured with several numbers of layers, with and without their proof."""
    lines: dict[tuple[str, str, bool], list[tuple[int, float, float]]] = {}
    for row in rows():
        if row["exporter"] == "posexport" and "failed" not in row:
            layers = row.get("layers") or SHAPES[row["shape"]].get("config", {}).get("num_hidden_layers", 0)
            point = (layers, row["cpu_seconds"], row["peak"] / 1e9)
            lines.setdefault((row["shape"], row["precision"], row["proof"]), []).append(point)
    figure, (seconds, memory) = plt.subplots(1, 2, figsize=(9, 3.2))
    for (shape, precision, proof), points in lines.items():
        if len(points) > 1:
            layers, times, peaks = zip(*sorted(points), strict=True)
            label = f"{shape}, {precision}{', proof' if proof else ''}"
            style = "o-" if proof else "o--"
            seconds.plot(layers, times, style, label=label)
            memory.plot(layers, peaks, style, label=label)
    seconds.set_ylabel("processor time in s")
    memory.set_ylabel("peak memory in GB")
    for axes in (seconds, memory):
        axes.set_xlabel("layers")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    seconds.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "pictures" / "costs.svg", metadata={"Date": None})

"""ci/results/shapes.json as Markdown."""

import json
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[2] / "results" / "shapes.json"


def table() -> str:
    """A line for every shape and precision: what its conversion takes, proven, without proof and by others."""
    rows = [row for row in json.loads(_RESULTS.read_text()) if not row.get("layers")] if _RESULTS.exists() else []
    if not rows:
        return "Not measured yet: `ci/lab/shapes measure`."
    by_line: dict[tuple[str, str], dict[tuple[str, bool], dict[str, Any]]] = {}
    for row in rows:
        by_line.setdefault((row["shape"], row["precision"]), {})[row["exporter"], row["proof"]] = row
    lines = [
        "| | weights | file | with proof | without | onnxruntime-genai | optimum-onnx |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for (shape, precision), found in by_line.items():
        ways = (("posexport", True), ("posexport", False), ("onnxruntime-genai", False), ("optimum-onnx", False))
        cells = [_cost(found.get(way), notes) for way in ways]
        ours = found.get(("posexport", False)) or found.get(("posexport", True)) or next(iter(found.values()))
        sizes = f"{ours['weights'] / 1e9:.2f} GB | {ours['bytes'] / 1e9:.2f} GB"
        lines.append(f"| {shape}, {precision} | {sizes} | {' | '.join(cells)} |")
    lines += ["", *(f"[{number}] `{note}`\\" for number, note in enumerate(notes, 1))]
    shapes: dict[str, dict[str, None]] = {}
    for row in rows:
        shapes.setdefault(row["cpu"], {})[row["shape"]] = None
    machines = "; ".join(f"{cpu}: {', '.join(names)}" for cpu, names in shapes.items())
    commits, dates = (", ".join(sorted({row[key] for row in rows})) for key in ("commit", "date"))
    return "\n".join([*lines, "", f"{machines}; {rows[0]['cores']} cores; commits {commits}; {dates}."])


def _cost(row: dict[str, Any] | None, notes: list[str]) -> str:
    """Processor seconds, wall seconds in brackets, peak memory; or the number of a note."""
    if row is None:
        return ""
    if "failed" in row:
        if row["failed"] not in notes:
            notes.append(row["failed"])
        return f"fails [{notes.index(row['failed']) + 1}]"
    return f"{row['cpu_seconds']:.0f} s ({row['seconds']:.0f} s), {row['peak'] / 1e9:.2f} GB"

"""ci/results/real.json as Markdown."""

import json
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[2] / "results" / "real.json"
_PRECISIONS = ("fp32", "int8", "int4")


def table() -> str:
    """A line for every model: how many answers are PyTorch's in each precision, and how many are right."""
    rows = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else []
    if not rows:
        return "Not measured yet: `ci/lab/real`."
    by_model: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["by"]] = row
    lines = ["| package | question | answers | PyTorch | float32 | int8 | int4 | MB |", "|" + "---|" * 8]
    notes: dict[tuple[str, str], list[str]] = {}
    for found in by_model.values():
        first = found["PyTorch"]
        cells = [_right(first), *(_cell(found[precision], notes) for precision in _PRECISIONS)]
        sizes = ", ".join(f"{found[each]['bytes'] / 1e6:.1f}" for each in _PRECISIONS if "bytes" in found[each])
        what = f"{first['what']} | {first['questions']:,}"
        lines.append(f"| {first['package'].replace('==', ' ')} | {what} | {' | '.join(cells)} | {sizes} |")
        for by in found.keys() - {"PyTorch", *_PRECISIONS}:
            notes[first["package"].replace("==", " "), f"{found[by]['same']:,} answers are PyTorch's"] = [
                f"its own {by}"
            ]
    said = [f"- {name} in {', '.join(where)}: {text}." for (name, text), where in notes.items()]
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    return "\n".join([*lines, "", *said, *([""] if said else []), f"Commits {commits}."])


def _cell(row: dict[str, Any], notes: dict[tuple[str, str], list[str]]) -> str:
    """How many answers are PyTorch's, and how many right."""
    if "refused" in row:
        notes.setdefault((row["model"], row["refused"]), []).append(row["by"])
        return "refused"
    if row["verdict"] != "proven":
        notes.setdefault((row["model"], row["verdict"]), []).append(row["by"])
    right = _right(row)
    return f"{row['same']:,}" + (f" ({right})" if right else "")


def _right(row: dict[str, Any]) -> str:
    return f"{row['right']:,} right" if "right" in row else ""

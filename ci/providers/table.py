"""ci/results/providers.json as Markdown: how many rows are right, and where each of the others begins."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "providers.json"


def table(provider: str) -> str:
    """One provider's rows."""
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()).get(provider, {})
    if not rows:
        return f"Not measured yet: `ci/providers/run {provider}`."
    groups: dict[str, list[str]] = defaultdict(list)
    errors: dict[str, float] = {}
    for name, row in rows.items():
        kind = _kind(row)
        if kind == _RIGHT and name.endswith("int4"):
            kind = "right, int4"
        groups[kind].append(name)
        if row.get("error") is not None:
            errors[kind] = max(errors.get(kind, 0.0), row["error"] if kind != _ROUNDS else row.get("beside_cpu", 0.0))
    order = sorted(groups, key=lambda kind: (kind != _RIGHT, -len(groups[kind])))
    lines = ["| | rows | largest error | which |", "|---|---|---|---|"]
    for kind in order:
        error = f"{errors[kind]:.1e}" if kind in errors else ""
        lines.append(f"| {kind} | {len(groups[kind])} | {error} | {', '.join(f'`{name}`' for name in groups[kind])} |")
    versions = sorted({row["onnxruntime"] for row in rows.values() if "onnxruntime" in row})
    lines += ["", f"ONNX Runtime {' and '.join(versions)}; {len(rows)} rows, `ci/providers/run {provider}`."]
    return "\n".join(lines)


_RIGHT = "right"
_ROUNDS = "int4: rounds no activations, as the sample of the CPU does; the error is from the CPU without optimisations"


def _kind(row: dict[str, Any]) -> str:
    if row["right"] and not row["strays"]:
        return _RIGHT
    if row["right"]:
        ran = sorted({f"`{node[1]}`" for node in (re.search(r"\((\w+), ", s) for s in row["strays"]) if node})
        return f"right, and refused by `verify`: {', '.join(ran)} of real numbers ran on the CPU"
    if "beside_cpu" in row:
        return _ROUNDS
    if found := re.search(r"It starts at node \S.*? \((\w+)(?:, in \w+)?\)", row["why"]):
        operator = {"Sin": "Cos` or `Sin", "Cos": "Cos` or `Sin"}.get(found[1], found[1])
        return f"wrong from a node `{operator}` on"
    if row["right"] is None:
        known = r"OpConversionFailure|not found in graph cache|no answer|process ended|not converted"
        reason = re.search(known, row["why"])
        return f"does not open: {reason[0] if reason else row['why'][-120:]}".replace("|", "\\|")
    return "wrong: " + (row["why"].split(":")[0][:80] or "no reason is known")

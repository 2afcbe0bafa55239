"""ci/results/providers.json as Markdown: how many rows are right, and where each of the others begins."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "providers.json"


def table(provider: str, precision: str = "") -> str:
    """The Markdown table of one provider, by groups of results.

    ``precision``: of sessions, if not float32; with lengths behind it for rows at other lengths than `run.LONG`.
    """
    key = f"{provider} {precision}".strip()
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()).get(key, {})
    computes, *lengths = precision.split() or [""]
    options = f" --precision {computes}" if computes else ""
    command = f"`ci/lab/providers/run {provider}{options}{''.join(f' --length {length}' for length in lengths)}`"
    if not rows:
        return f"Not measured yet: {command}."
    groups: dict[str, list[str]] = defaultdict(list)
    errors: dict[str, float] = {}
    for name, result in rows.items():
        kind = _kind(result)
        if kind == _RIGHT and name.endswith("int4"):
            kind = "right, int4"
        groups[kind].append(name)
        if result.get("error") is not None:
            errors[kind] = max(
                errors.get(kind, 0.0), result["error"] if kind != _ROUNDS else result.get("beside_cpu", 0.0)
            )
    order = sorted(groups, key=lambda kind: (kind != _RIGHT, -len(groups[kind])))
    lines = ["| | rows | largest error | which |", "|---|---|---|---|"]
    for kind in order:
        error = f"{errors[kind]:.1e}" if kind in errors else ""
        lines.append(f"| {kind} | {len(groups[kind])} | {error} | {', '.join(f'`{name}`' for name in groups[kind])} |")
    versions = sorted({result["onnxruntime"] for result in rows.values() if "onnxruntime" in result})
    lines += ["", f"ONNX Runtime {' and '.join(versions)}; {len(rows)} rows, {command}."]
    return "\n".join(lines)


_RIGHT = "right"
_ROUNDS = "int4: rounds no activations, as the sample of the CPU does; the error is from the CPU without optimisations"


def _kind(result: dict[str, Any]) -> str:
    if result["right"] and not result["strays"]:
        return _RIGHT
    if result["right"]:
        ran = sorted({f"`{node[1]}`" for node in (re.search(r"\((\w+), ", s) for s in result["strays"]) if node})
        return f"right, and refused by `verify`: {', '.join(ran)} of real numbers ran on the CPU"
    if "beside_cpu" in result:
        return _ROUNDS
    if match := re.search(r"It starts at node \S.*? \((\w+)(?:, in \w+)?\)", result["why"]):
        operator = {"Sin": "Cos` or `Sin", "Cos": "Cos` or `Sin"}.get(match[1], match[1])
        return f"wrong from a node `{operator}` on"
    if result["right"] is None:
        known = r"OpConversionFailure|not found in graph cache|no answer|process ended|not converted"
        reason = re.search(known, result["why"])
        return f"does not open: {reason[0] if reason else result['why'][-120:]}".replace("|", "\\|")
    return "wrong: " + (result["why"].split(":")[0][:80] or "no reason is known")

"""The tables of docs/results/cuda-dry-run.md, from ``ci/results/cuda-dry.json``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "cuda-dry.json"
Rows = Mapping[tuple[str, str], Mapping[str, Any]]
#: of a built-in model's name: the kinds that the table of encodings has, with the calls that it shows
_ENCODERS = ("encoder-", {"length 128": "128", "length 513": "513"})
_DECODERS = ("decoder-", {"length 128": "prompt", "step behind 512": "step"})


def table() -> str:
    """Encoders and decoders in fp16, then what other cases there are."""
    rows = {(row["case"], row["card"]): row for row in json.loads(RESULTS.read_bytes())["rows"]}
    return "\n\n".join([_of(rows, *_ENCODERS), _of(rows, *_DECODERS), _others(rows)])


def _of(rows: Rows, kind: str, calls: Mapping[str, str]) -> str:
    """One row for each model of a kind, in fp16; those with a static KV cache behind the others."""
    shown = " / ".join(calls.values())
    heads = [f"`{kind}`", f"A100: {shown}", f"H100: {shown}", "kernels a layer", "x nope", "to host", "to device"]
    heads += ["CUDA graph", "MB"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    names = {case for case, _ in rows if case.startswith(kind) and case.split()[1] == "fp16"}
    names -= {case for case in names if case.startswith("encoder-decoder-")}
    lines += [_row(rows, case, kind, calls) for case in sorted(names, key=lambda case: (case.count(" "), case))]
    return "\n".join(lines)


def _row(rows: Rows, case: str, kind: str, calls: Mapping[str, str]) -> str:
    a100, h100 = ((rows.get((case, card)) or {"error": "not run"}) for card in ("A100", "H100"))
    name, _, options = case.removeprefix(kind).partition(" ")
    label = " ".join(["`" + name + "`", *options.split()[1:]])
    if "error" in a100:
        return f"| {label} | {a100['error'][:80]} |||||||||"
    cache = case.removeprefix(f"{kind}{name}")
    base = (rows.get((f"{kind}nope{cache}", "A100")) or {}).get("layer_kernels")
    layer = a100.get("layer_kernels")
    ratio = f"{layer / base:.2g}" if layer is not None and base else ""
    of_a100 = [_call(a100, call) for call in calls]
    ran = [call for row in (a100, h100) for each in row.get("calls", {}).values() for call in each.values()]
    graphs = {call["cuda_graph"] == "captured" for call in ran if call.get("cuda_graph")}
    copies = [max((call.get(key, 0) for call in of_a100), default=0) for key in ("to_host", "to_device")]
    peak = max(call.get("peak_bytes", 0) for call in of_a100) / 1e6
    cells = [label, *(" / ".join(_kernel(_call(row, call)) for call in calls) for row in (a100, h100))]
    cells += [str(layer if layer is not None else ""), ratio, *map(str, copies)]
    cells += ["yes" if graphs == {True} else "no" if graphs else "", f"{peak:.1f}"]
    return f"| {' | '.join(cells)} |"


def _call(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Of a model's only graph."""
    return next(iter(row.get("calls", {}).values()), {}).get(name, {})


def _kernel(call: Mapping[str, Any]) -> str:
    return "refused" if "error" in call else ", ".join(call.get("attention", {})) or "none"


def _others(rows: Rows) -> str:
    """How many other cases were run, and every one that does not open or has nodes on the CPU."""
    ran = [row for row in rows.values() if "error" not in row]
    errors = [f"`{case}` on {card}: {row['error']}" for (case, card), row in rows.items() if "error" in row]
    calls = [
        (f"`{row['case']}` on {row['card']}", call)
        for row in ran
        for each in row["calls"].values()
        for call in each.values()
    ]
    strays = sorted({f"{name} ({', '.join(call['on_cpu'])})" for name, call in calls if call.get("on_cpu")})
    count = f"{len(rows)} cases (model, precision, cache, card), {len(calls)} calls: {len(ran)} open"
    return "\n".join(
        [
            f"{count}. Do not open: {'; '.join(errors) or 'none'}. Nodes on the CPU that are no arithmetic of sizes: "
            f"{'; '.join(strays) or 'none'}."
        ]
    )

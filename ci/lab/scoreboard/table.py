"""ci/results/scoreboard.jsonl as Markdown: totals, pairs by family, and every fault with the smallest input."""

import json
import statistics
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results" / "scoreboard.jsonl"
#: exporters as readers call them
EXPORTERS = {
    "posexport": "posexport",
    "optimum": "optimum-onnx",
    "transformers": "transformers.exporters",
    "mobius": "mobius-onnx",
    "torch": "torch.onnx.export",
}
VERDICTS = {
    "right": "right",
    "sizes": "right at the sizes that it takes",
    "wrong": "wrong",
    "fails": "fails to run",
    "refuses": "refuses",
    "unjudged": "not judged",
}
_GROUPS = {
    "first": "the most used of text", "text": "text encoders", "encoders": "text encoders, defined by posexport",
    "decoders": "decoders", "states": "decoders with states", "seq2seq": "encoder-decoders",
    "long": "encoder-decoders of images", "masks": "masks of prompts", "images": "images",
    "pictures": "boxes, masks, depth", "towers": "text and images", "compared": "text and images, text and sound",
    "sound": "sound", "heads": "heads", "pages": "pages", "series": "series",
}  # fmt: skip
#: complete pairs from which on the README names totals
ENOUGH = 100


def recorded() -> dict[str, dict[str, dict[str, Any]]]:
    """All lines by pair and exporter."""
    by_pair: dict[str, dict[str, dict[str, Any]]] = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else []:
        result = json.loads(line)
        by_pair.setdefault(result["pair"], {})[result["exporter"]] = result
    return by_pair


def complete() -> dict[str, dict[str, dict[str, Any]]]:
    """The pairs that all exporters have."""
    return {pair: rows for pair, rows in recorded().items() if len(rows) == len(EXPORTERS)}


def _counts(exporter: str) -> Counter[str]:
    return Counter(rows[exporter]["verdict"] for rows in complete().values())


def totals() -> str:
    """Verdicts by exporter over the pairs that all of them have, with versions and costs."""
    done = complete()
    if not done:
        return "Not measured yet: `ci/lab/scoreboard/run`."
    heads = [f"{len(done)} pairs", *VERDICTS.values(), "seconds, median", "peak memory, median"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for exporter, label in EXPORTERS.items():
        rows, counts = [by_exporter[exporter] for by_exporter in done.values()], _counts(exporter)
        installed = rows[0]["versions"]
        named = ", ".join(f"{name} {installed[name]}" for name in dict.fromkeys([*list(installed)[:1], "transformers"]))
        cells = [f"{label} ({named})" if exporter != "posexport" else label]
        cells += [str(counts[verdict] or "") for verdict in VERDICTS]
        exported = [result for result in rows if "seconds" in result and result["verdict"] != "refuses"]
        costs = [
            statistics.median(result[key] for result in exported) if exported else 0 for key in ("seconds", "peak_mb")
        ]
        lines.append(f"| {' | '.join([*cells, f'{costs[0]:.0f}', f'{costs[1]:.0f} MB'])} |")
    dates = sorted(result["date"] for rows in done.values() for result in rows.values())
    commits = sorted({rows["posexport"]["commit"] for rows in done.values()})
    shown = ", ".join(commits[:4]) + (f" and {len(commits) - 4} more" if len(commits) > 4 else "")
    alone = Counter(
        VERDICTS[rows["posexport"]["verdict"]]
        for pair, rows in recorded().items()
        if pair not in done and "posexport" in rows
    )
    more = "; ".join(f"{count} {verdict}" for verdict, count in alone.most_common())
    lines += ["", f"{dates[0]} to {dates[-1]}; posexport at commits {shown}."]
    lines += [f"Of {alone.total()} more pairs only posexport has been judged so far: {more}."] if alone else []
    return "\n".join(lines)


def by_family() -> str:
    """One line per pair."""
    groups: dict[str, list[str]] = {}
    for pair, rows in sorted(complete().items()):
        first = next(iter(rows.values()))
        cells = [f"`{pair}`", first["task"], *(VERDICTS[rows[name]["verdict"]] for name in EXPORTERS)]
        groups.setdefault(_GROUPS[first["group"]], []).append(f"| {' | '.join(cells)} |")
    heads = ["pair", "task", *EXPORTERS.values()]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for group in dict.fromkeys(_GROUPS.values()):
        if group in groups:
            lines += [f"| **{group}** {'| ' * len(EXPORTERS)}| |", *groups[group]]
    return "\n".join(lines)


def faults() -> str:
    """Wrong and failing files with the first point and the difference; unjudged pairs with the reason."""
    lines = ["| exporter, pair | verdict | first point | what |", "|---|---|---|---|"]
    for exporter, label in EXPORTERS.items():
        for pair, rows in sorted(recorded().items()):
            result = rows.get(exporter, {"verdict": ""})
            if result["verdict"] in ("wrong", "fails", "unjudged"):
                said = _short(result.get("said", ""))
                lines.append(
                    f"| {label}, `{pair}` | {VERDICTS[result['verdict']]} | {result.get('point', '')} | {said} |"
                )
    return "\n".join(lines)


def refusals() -> str:
    """How often an exporter refuses with which beginning of a sentence."""
    lines = ["| exporter | pairs | sentence |", "|---|---|---|"]
    for exporter, label in EXPORTERS.items():
        said: dict[str, list[str]] = {}
        for pair, rows in sorted(complete().items()):
            if rows[exporter]["verdict"] == "refuses":
                said.setdefault(_short(rows[exporter]["said"].replace(pair, "..."))[:110], []).append(f"`{pair}`")
        lines += [f"| {label} | {', '.join(pairs)} | {sentence} |" for sentence, pairs in said.items()]
    return "\n".join(lines)


def _short(sentence: str) -> str:
    """A sentence cut and escaped for a table cell."""
    cut = sentence if len(sentence) <= 160 else sentence[:157] + "..."
    return cut.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def sentence() -> str:
    """The README's line: totals once enough pairs are complete."""
    done, said = complete(), list[str]()
    for exporter, label in EXPORTERS.items():
        counts = _counts(exporter)
        right = counts["right"] + counts["sizes"]
        said.append(f"{label} right for {right}, wrong for {counts['wrong']}, failing for {counts['fails']}")
    totals_ = "; ".join(said) if len(done) >= ENOUGH else "its totals are there"
    pairs = f"The [scoreboard](docs/scoreboard.md) has {len(done)} pairs of model type and task, and one judge for all"
    return textwrap.fill(f"{pairs}: {totals_}.", 118)

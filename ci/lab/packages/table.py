"""ci/results/packages.jsonl as Markdown: the second draw, module by module, and how many are right of both."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parents[2] / "results" / "packages.jsonl"
#: characters of a reason, without the module's name before it
_REASON = 260

Row = dict[str, Any]


def table() -> str:
    """A line for every module of the second draw: the first try, today's, and why one is not right."""
    rows, lines = _drawn(), []
    lines += ["| package | module | first try | now | s | GB | remark |", "|" + "---|" * 7]
    for row in rows:
        reason = _reason(row) if row["outcome"] != "right" else ""
        cost = f"{row.get('cpu_seconds', '')} | {row.get('gigabytes', '')}"
        first = row.get("first", row["outcome"])
        lines.append(f"| {row['package']} | {row['module']} | {first} | {row['outcome']} | {cost} | {reason} |")
    return "\n".join([*lines, "", _counted(rows), "", f"Commits {', '.join(_commits(rows))}."])


def sentence() -> str:
    """How many modules of the draw are right, for README."""
    rows = _drawn()
    first = Counter(row.get("first", row["outcome"]) for row in rows)
    now = Counter(row["outcome"] for row in rows)
    packages = len({row["package"] for row in rows})
    return (
        f"Of {len(rows)} modules of {packages} packages, drawn before any was converted, {first['right']} were right\n"
        f"at the first try, {now['right']} are now, {now['wrong'] or 'none'} is wrong "
        "([each of them](docs/results/packages.md))."
    )


def _counted(rows: Sequence[Row]) -> str:
    first = Counter(row.get("first", row["outcome"]) for row in rows)
    now = Counter(row["outcome"] for row in rows)
    seconds = statistics.median(row["cpu_seconds"] for row in rows if "cpu_seconds" in row)
    most = max(row.get("gigabytes", 0) for row in rows)
    return (
        f"First try: {_outcomes(first)}. Now: {_outcomes(now)}. Median {seconds:g} s of processor time, largest peak "
        f"{most:g} GB."
    )


def _outcomes(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _drawn() -> list[Row]:
    """The lines of the second draw, in its order."""
    names = re.findall(r"^def (\w+)\(\) -> Case:", (Path(__file__).parent / "drawn.py").read_text(), re.MULTILINE)
    rows = {row["module"]: row for row in map(json.loads, _RESULTS.read_text().splitlines())}
    return [rows[name] for name in names if name in rows]


def _reason(row: Row) -> str:
    """What the conversion said, shortened, without the class's name and the file with the rest."""
    said = re.sub(r"; all that .* says is in \S+", "", " ".join(row["said"].split()))
    said = said.partition(": ")[2] or said
    said = said if len(said) <= _REASON else said[:_REASON] + " ..."
    return said.replace("|", "\\|")


def _commits(rows: Sequence[Row]) -> list[str]:
    return sorted({row["commit"] for row in rows if "commit" in row})

"""ci/results/packages.jsonl as Markdown: the draws, module by module, and how many are right."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.lab.packages.draws.order import DRAWS, FOLDER

_RESULTS = Path(__file__).parents[2] / "results" / "packages.jsonl"
#: characters of a reason, without the module's name before it
_REASON = 260

Row = dict[str, Any]


def tried() -> list[str]:
    """The draws of which a module was converted, in their order."""
    return [draw for draw in DRAWS if _drawn(draw)]


def table(draw: str) -> str:
    """A line for every module of a draw: the first try, today's, and why one is not right."""
    rows = _drawn(draw)
    lines = list[str]()
    lines += ["| package | module | first try | now | s | GB | remark |", "|" + "---|" * 7]
    for row in rows:
        reason = _reason(row) if row["outcome"] != "right" else ""
        cost = f"{row.get('cpu_seconds', '')} | {row.get('gigabytes', '')}"
        first = row.get("first", row["outcome"])
        lines.append(f"| {row['package']} | {row['module']} | {first} | {row['outcome']} | {cost} | {reason} |")
    return "\n".join([*lines, "", _counted(rows), "", f"Commits {', '.join(_commits(rows))}."])


def sentence() -> str:
    """How many modules of all draws are right, for README."""
    draws = [_drawn(name) for name in tried()]
    (one, first, now), *later = ((len(rows), *_right(rows)) for rows in draws)
    wrong = sum(row["outcome"] == "wrong" for rows in draws for row in rows)
    packages = len({row["package"] for rows in draws for row in rows})
    drawn, at_first, today = (", ".join(map(str, numbers)) for numbers in zip(*later, strict=True))
    return (
        f"Of {one} modules, drawn before any was converted, {first} were right at the first try, {now} are now;\n"
        f"of {drawn} drawn later, {at_first} and {today}. They are of {packages} packages.\n"
        f"{wrong or 'None'} is wrong ([each of them](docs/results/packages.md))."
    )


def _right(rows: Sequence[Row]) -> tuple[int, int]:
    """How many were right at the first try, and how many are now."""
    first = sum(row.get("first", row["outcome"]) == "right" for row in rows)
    return first, sum(row["outcome"] == "right" for row in rows)


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


def _drawn(draw: str) -> list[Row]:
    """The lines of a draw, in its order."""
    cases = re.finditer(
        r'^(?:def (\w+)\(\) -> Case:|constructor\(\s*"(\w+)")', (FOLDER / f"{draw}.py").read_text(), re.MULTILINE
    )
    names = [case[1] or case[2] for case in cases]
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

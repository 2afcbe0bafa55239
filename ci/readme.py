"""Fills the tables of README.md from the code and from what ``posexport bench`` found (``ci/results``).

``python ci/readme.py`` writes, ``--check`` only says whether it would. A table stands between
``<!-- NAME -->`` and ``<!-- end -->``.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from posexport.bench.markdown import tables
from posexport.bench.records import Document
from posexport.catalogue import catalogue
from posexport.explain.records import SHARES, Explanation

README = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).parent / "results"
#: the file of each suite's last full run
SUITES = {suite: f"{suite}.json" for suite in ("attention", "growth", "decode", "rivals", "lowerings")} | {
    "paper": "cpu.json"
}
ACTS = {
    "input": "input",
    "rotation": "rotation",
    "bias": "bias on the scores",
    "query-key": "query or key",
    "control": "nowhere",
}


def encodings() -> str:
    """Every encoding: what it does, where it acts, its models, its source."""
    lines = ["| name | what it does | acts | models | source |", "|---|---|---|---|---|"]
    for row in sorted(catalogue("encodings"), key=lambda row: row["name"]):
        what, source = (re.sub(r"``([^`]*)``", r"`\1`", row[key]).replace("|", "\\|") for key in ("what", "source"))
        acts = ", ".join(ACTS[family] for family in row["families"])
        models = ", ".join(model.removesuffix(f"-{row['name']}") for model in row["models"])
        lines.append(f"| `{row['name']}` | {what} | {acts} | {models} | {source} |")
    return "\n".join(lines)


def families() -> str:
    """Every family of checkpoints with its tasks, those of the same tasks in one row."""
    by_tasks: dict[str, list[str]] = {}
    for row in catalogue("families"):
        by_tasks.setdefault(", ".join(row["tasks"]), []).append(row["name"])
    lines = ["| `model_type` | tasks |", "|---|---|"]
    rows = sorted((", ".join(names), tasks) for tasks, names in by_tasks.items())
    lines += [f"| {names} | {tasks} |" for names, tasks in rows]
    return "\n".join(lines)


def speed(suite: str) -> str:
    """What the last full run of a suite found; how to make it where there is none."""
    path = RESULTS / SUITES[suite]
    if not path.exists():
        return f"Not measured yet: `posexport bench --suite {suite} --threads 2 -o ci/results/{path.name}`."
    chart = RESULTS / f"{suite}.svg"
    shown = f"![{suite}](ci/results/{chart.name})\n\n" if chart.exists() else ""
    return shown + tables(msgspec.json.decode(path.read_bytes(), type=Document))


def profiles() -> str:
    """Where the time of encoders goes that miss a figure: ``posexport explain --json`` of each, beside the floor's."""
    lines = [
        "| | length | ms in kernels | rest | attention | positions | kernels of the last two |",
        "|---|---|---|---|---|---|---|",
    ]
    found = [msgspec.json.decode(path.read_bytes(), type=Explanation) for path in RESULTS.glob("explain/*.json")]
    for each in sorted(found, key=lambda each: (_length(each), each.parts[0].taken("positions"))):
        (part,) = each.parts
        spent = Counter[str]()
        for kernel in (kernel for row in part.rows if row.share != "rest" for kernel in row.kernels):
            spent[kernel.op_type] += kernel.ms  # type: ignore[assignment]
        named = ", ".join(f"{name} {ms / part.kernels_ms:.1%}" for name, ms in spent.most_common(6))
        shares = [f"{part.taken(share):.0%}" for share in reversed(SHARES)]
        lines.append(f"| {' | '.join([each.bundle, str(_length(each)), f'{part.kernels_ms:.0f}', *shares, named])} |")
    return "\n".join(lines)


def _length(found: Explanation) -> int:
    return int(found.fed.rpartition("length ")[2])


TABLES: dict[str, Callable[[], str]] = {"encodings": encodings, "families": families} | {
    suite: partial(speed, suite) for suite in SUITES
}
TABLES["profiles"] = profiles


def filled(text: str) -> str:
    """The README's text with today's tables; ValueError where a table's place is not found."""
    for name, table in TABLES.items():
        # lazily, and nothing at all between the two: else an empty place takes the next table's
        place = re.compile(rf"(<!-- {name} -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"README.md has no place for the table {name}")
        text = place.sub(lambda found, table=table: f"{found[1]}{table()}\n{found[2]}", text)  # type: ignore[misc]
    return text


def main() -> int:
    """Exit 1 where ``--check`` finds an old table."""
    before = README.read_text()
    after = filled(before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

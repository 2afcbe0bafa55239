"""Hashes the graphs that `posexport convert` writes of many sources, and compares them with ci/results/digests.jsonl.

The hash is of what is computed: names of values, nodes and functions, and the order of nodes, do not count. Every line
of the record is a source and a target. Exit 1: a graph differs from the record, or has no line in it.

The gate of a change:  ci/digests/run --sample 40
What differs, by line: ci/digests/run --only CASE --text /tmp/after; the same at the older commit with --text
/tmp/before; diff -r /tmp/before /tmp/after
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ci.digests import convert
from ci.digests.cases import ROOT, Case, cases

RECORD = ROOT / "ci/results/digests.jsonl"
Key = tuple[str, str]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", help="cases whose 'name target' matches this regular expression")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="N recorded ones at random, of families and targets in turn"
    )
    parser.add_argument("--seed", type=int, help="of the sample; default: another one each time, which is printed")
    parser.add_argument("--missing", action="store_true", help="those that the record does not have")
    parser.add_argument("--record", action="store_true", help="write what differs to the record, as it is done")
    parser.add_argument("--text", type=Path, metavar="DIR", help="write each graph as sorted lines without names")
    parser.add_argument("--fresh", action="store_true", help="trace for every target anew")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each (2)")
    options = parser.parse_args()
    os.chdir(ROOT)
    known, every = recorded(), cases()
    keys = chosen(every, options, known)
    if options.text is not None:
        options.text.mkdir(parents=True, exist_ok=True)
    began, compared = time.monotonic(), Compared()
    new: dict[Key, Row] = {}
    for row in computed(keys, options):
        key = row["case"], row["target"]
        new[key] = row
        compared.add(known.get(key), row)
        if options.record:
            record(known | new)
    print(f"{len(new)} graphs in {time.monotonic() - began:.0f} s: {compared}")
    sys.exit(1 if compared.bad and not options.record else 0)


def recorded() -> dict[Key, Row]:
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return {(row["case"], row["target"]): row for row in map(json.loads, lines)}


def record(rows: dict[Key, Row]) -> None:
    written = RECORD.with_suffix(".tmp")
    written.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for _, row in sorted(rows.items())))
    written.replace(RECORD)


def chosen(every: dict[str, Case], options: argparse.Namespace, known: Iterable[Key]) -> list[Key]:
    """The cases and targets that the options ask for."""
    keys = [(name, target) for name, case in every.items() for target in case.targets]
    if options.only:
        keys = [key for key in keys if re.search(options.only, " ".join(key))]
    if options.missing:
        keys = [key for key in keys if key not in known]
    if options.sample is not None:
        keys = [key for key in keys if key in known or options.missing]
        seed = random.randrange(10**6) if options.seed is None else options.seed
        print(f"sample of {options.sample} by --seed {seed}")
        keys = sampled(keys, {name: case.family for name, case in every.items()}, options.sample, random.Random(seed))
    return keys


def sampled(keys: list[Key], family: dict[str, str], size: int, drawn: random.Random) -> list[Key]:
    """One of each family in turn, and among its cases one of the target that was drawn least often."""
    left: dict[str, list[Key]] = {}
    for key in drawn.sample(keys, len(keys)):
        left.setdefault(family[key[0]], []).append(key)
    found: list[Key] = []
    while len(found) < min(size, len(keys)):
        for of_family in drawn.sample(list(left.values()), len(left)):
            if of_family and len(found) < size:
                targets = [target for _, target in found]
                best = min(of_family, key=lambda key: targets.count(key[1]))
                of_family.remove(best)
                found.append(best)
    return found


def computed(keys: list[Key], options: argparse.Namespace) -> Iterator[Row]:
    """Rows as they are done; one process takes all targets of a case, which share what is traced."""
    together: dict[str, list[str]] = {}
    for name, target in keys:
        together.setdefault(name, []).append(target)
    tasks = [(name, targets, options.text, options.fresh) for name, targets in together.items()]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, convert.prepare) as pool:
        for done in as_completed(pool.submit(convert.rows, *task) for task in tasks):
            yield from done.result()


class Compared:
    """Counts what is as recorded, and prints what is not."""

    def __init__(self) -> None:
        self.same, self.bad, self.words = 0, 0, 0

    def add(self, before: Row | None, after: Row) -> None:
        if before == after:
            self.same += 1
        elif before is not None and "refused" in before and "refused" in after:
            self.words += 1
            print(f"{after['case']} {after['target']}: refused in other words: {after['refused']}", flush=True)
        else:
            self.bad += 1
            print(f"{after['case']} {after['target']}: {difference(before, after)}", flush=True)

    def __str__(self) -> str:
        words = f", {self.words} refused in other words" if self.words else ""
        return f"{self.same} as recorded{words}, {self.bad} differ"


def difference(before: Row | None, after: Row) -> str:
    if before is None:
        return f"not recorded, now {outcome(after)}"
    if "digest" not in before or "digest" not in after:
        return f"was {outcome(before)}, is {outcome(after)}"
    names = sorted({*before["operators"], *after["operators"]})
    pairs = [("nodes", before["nodes"], after["nodes"])]
    pairs += [(name, before["operators"].get(name, 0), after["operators"].get(name, 0)) for name in names]
    changes = [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]
    return f"differs: {', '.join(changes) or 'no number of nodes'}"


def outcome(row: Row) -> str:
    how = next(key for key in ("digest", "refused", "failed") if key in row)
    return f"{how}: {row[how]}"


if __name__ == "__main__":
    main()

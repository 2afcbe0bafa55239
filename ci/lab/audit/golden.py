"""Findings of posexport audit in what posexport writes: every golden checkpoint, three targets, five precisions.

Graphs are converted without proof and audited for the provider that computes them: those in bfloat16 for CUDA. One
checkpoint of every family comes first. Each line of ci/results/audit-golden.jsonl is a bundle's; a run goes on with
those that have none. Exit 1: there are findings.
"""

import argparse
import contextlib
import gc
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import posexport
from posexport.conversion.export import build
from posexport.errors import PosexportError
from tests.traces import Traces

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "ci/results/audit-golden.jsonl"
TARGETS = ("portable", "cpu", "cuda")
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int4")
Entry = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="checkpoints in tests/golden; default: all")
    parser.add_argument("--again", action="store_true", help="also graphs that have a line")
    parser.add_argument("--minutes", type=float, help="begin no further checkpoint after this time")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="in place of ci/results")
    options = parser.parse_args()
    done = {} if options.again and not options.names else recorded(options.record)
    began = time.monotonic()
    for name in options.names or by_family():
        if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
            break
        for entry in audited(name, {} if options.again else done):
            done[key(entry)] = entry
            for finding in entry.get("findings", ()):
                print(name, entry["target"], entry["precision"], finding["code"], finding["message"], flush=True)
            write(options.record, done)
    codes = Counter(finding["code"] for entry in done.values() for finding in entry.get("findings", ()))
    refused = sum("refused" in entry for entry in done.values())
    print(f"{len(done) - refused} bundles, {refused} refused: {dict(codes) or 'nothing found'}")
    sys.exit(1 if codes else 0)


def by_family() -> list[str]:
    """All golden checkpoints: one of every model type, in random order, then the others."""
    drawn = random.Random(5)
    families: dict[str, list[str]] = {}
    for config in sorted((ROOT / "tests/golden").glob("*/config.json")):
        families.setdefault(json.loads(config.read_text())["model_type"], []).append(config.parent.name)
    rounds = [drawn.sample(names, len(names)) for names in families.values()]
    every = [(turn, drawn.random(), name) for names in rounds for turn, name in enumerate(names)]
    return [name for _, _, name in sorted(every)]


def audited(name: str, done: dict[tuple[str, ...], Entry]) -> Iterator[Entry]:
    """An entry for each target and precision that ``done`` does not have."""
    traces = Traces(None)  # the graph of a checkpoint is traced once
    with mock.patch.object(build, "trace", traces), tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            for precision in PRECISIONS:
                entry: Entry = {"checkpoint": name, "target": target, "precision": precision}
                if key(entry) in done:
                    continue
                bundle = Path(folder) / f"{target}-{precision}"
                try:
                    with _any_size():
                        posexport.convert(
                            ROOT / "tests/golden" / name,
                            bundle,
                            target=target,
                            precision=[precision],
                            verify=False,
                            threads=1,
                        )
                except PosexportError as err:
                    yield {**entry, "refused": str(err).replace(str(ROOT), "").replace(folder, "")}
                    continue
                yield {**entry, **findings(bundle, "cuda" if target == "cuda" or precision == "bf16" else "cpu")}
    gc.collect()


def findings(bundle: Path, provider: str) -> Entry:
    """How many graphs a bundle has, and what rules find in them."""
    audit = posexport.audit(bundle, provider=[provider])
    skipped = {"skipped": audit.skipped} if audit.skipped else {}
    keys = ("code", "severity", "message")
    listed = [{key: getattr(finding, key) for key in keys} for finding in audit]
    return {"graphs": len(audit.files), "findings": listed, **skipped}


def _any_size() -> contextlib.AbstractContextManager[Any]:
    """Projections of any size are quantized: those of golden checkpoints would be larger than in float32."""
    return mock.patch("posexport.graph.precision.selection.shrinking", lambda chosen, _: chosen)


def key(entry: Entry) -> tuple[str, ...]:
    return entry["checkpoint"], entry["target"], entry["precision"]


def recorded(path: Path) -> dict[tuple[str, ...], Entry]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {key(entry): entry for entry in map(json.loads, lines)}


def write(path: Path, entries: dict[tuple[str, ...], Entry]) -> None:
    written = path.with_suffix(".tmp")
    written.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for _, entry in sorted(entries.items())))
    written.replace(path)


if __name__ == "__main__":
    main()

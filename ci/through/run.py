"""Converts small random checkpoints through transformers, as checkpoints.yaml says, and prints a line for each.

Run by `ci/through/run`, which resumes: a row that ci/results/through.jsonl has for this target and precision, and whose
entry has not changed since, is left out. Exit 1: one was not proven, or was not refused as it must be.
"""

import argparse
import json
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import client
import golden
import onnxruntime
import torch
import transformers
from tiny import groups, is_type, make, table

import posexport
from posexport.errors import PosexportError
from posexport.through.agreement import CUSTOM_ATTENTION

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "ci/results/through.jsonl"
PROVEN = ROOT / "posexport/through/proven.json"
#: a row's key, and of which target and precision the rows are that posexport lists types by
KEYS, LISTED = ("type", "target", "precision"), ("cpu", "fp32")
VERSIONS = {each.__name__: each.__version__ for each in (transformers, torch, onnxruntime)}


def digest(entry: dict[str, Any]) -> str:
    """What tells whether a row is still the recorded one."""
    return sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:12]


def recorded() -> list[dict[str, Any]]:
    """The rows of ci/results/through.jsonl."""
    return [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []


def record(row: dict[str, Any]) -> None:
    """Put ``row`` in the place of the one of its type, target and precision; the list of proven types follows."""
    keep = [old for old in recorded() if any(old[key] != row[key] for key in KEYS)]
    lines = sorted(json.dumps(each) for each in [*keep, row])
    written = RECORD.with_suffix(".tmp")
    written.write_text("\n".join(lines) + "\n")
    written.replace(RECORD)
    proven: dict[str, str] = json.loads(PROVEN.read_text())
    entries = table()
    for each in [row for row in recorded() if (row["target"], row["precision"]) == LISTED]:
        if each["outcome"] == "proven" and is_type(entries[each["type"]]):
            proven[each["type"]] = each["said"]
        else:
            proven.pop(each["type"], None)
    PROVEN.write_text(json.dumps(proven, indent=1, sort_keys=True) + "\n")


def outcome(name: str, source: Path, bundle: Path, entry: dict[str, Any], **kind: str) -> tuple[str, str]:
    """proven, refused or failed, and for which task it was proven or what was said. ``kind``: target and precision."""
    definition = "transformers" if entry.get("through") else "paper"
    live = getattr(transformers, entry["class"]).from_pretrained(source) if entry.get("live") else None
    try:
        result = posexport.convert(live or str(source), bundle, definition=definition, force=True, **kind)
    except PosexportError as err:
        return "refused", str(err).replace(f"{source}/", "").replace(str(source), name)
    eager = [remark for remark in result.remarks if CUSTOM_ATTENTION in remark]
    if bool(eager) != (entry.get("own") == "eager"):
        return "failed", eager[0] if eager else "attention is seen; the table says own: eager"
    if result.manifest is None or result.report is None or not result.good:
        return "failed", result.verdict
    if live is not None:
        for report in (posexport.verify(bundle, against=live), posexport.verify(bundle)):
            if not report.passed:
                return "failed", f"verify: {report.verdict}"
    if live is None and result.manifest.task in ("image-text-to-text", "audio-text-to-text"):
        off = client.difference(source, bundle, getattr(transformers, entry["class"]))
        if not off <= client.ROUNDING:
            return "failed", f"its graphs give other logits for an image between words, by {off:.1e} of the scale"
    if (bits := kind["precision"].partition("-")[0]) in ("int4", "int8") and not result.manifest.projections.get(bits):
        return "failed", f"no linear projection is {bits}: {result.manifest.projections}"
    return "proven", result.manifest.task


def right(entry: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a row is as its entry says."""
    if "refused" in entry:
        return row["outcome"] == "refused" and entry["refused"] in row["said"]
    return bool(row["outcome"] == "proven")


def converted(name: str, entry: dict[str, Any], into: Path, **kind: str) -> dict[str, Any]:
    """The row of a checkpoint, which is made again where its entry changed."""
    source, bundle, began = into / "checkpoints" / name, into / "bundles" / name, time.monotonic()
    made = source.with_suffix(".entry")
    try:
        if not made.exists() or made.read_text() != digest(entry):
            make(source, entry)
            made.write_text(digest(entry))
        how, said = outcome(name, source, bundle, entry, **kind)
    except Exception as err:  # noqa: BLE001 (a defect, which must not end the other rows)
        how, said = "failed", f"{type(err).__name__}: {err}"[:500]
    seconds = round(time.monotonic() - began)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    row = {"type": name, **kind, "outcome": how, "said": said, "seconds": seconds}
    if how == "proven" and kind["precision"] != LISTED[1]:
        row["projections"] = json.loads((bundle / "posexport.json").read_text())["projections"]
    return {**row, "entry": digest(entry), "commit": commit, "versions": VERSIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--group", choices=groups(), help="the checkpoints of a group, in place of names")
    parser.add_argument("--target", default=LISTED[0])
    parser.add_argument("--precision", default=LISTED[1])
    parser.add_argument("--again", action="store_true", help="convert what is recorded, too")
    parser.add_argument("--golden", action="store_true", help="the checkpoints of tests/golden (golden.py)")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.golden:
        bad = golden.run(options.names, options.into, VERSIONS, again=options.again)
    else:
        bad = converted_all(options)
    sys.exit(f"not as they must be: {', '.join(bad)}" if bad else 0)


def converted_all(options: argparse.Namespace) -> list[str]:
    """Convert the checkpoints that are not recorded yet; those whose rows are not as they must be."""
    plan, bad = table(), []
    kind = {"target": options.target, "precision": options.precision}
    done = {row["type"]: row for row in recorded() if row.items() >= kind.items()}
    for name in options.names or groups().get(options.group, plan):
        row, entry = done.get(name), plan[name]
        if options.again or row is None or row["entry"] != digest(entry):
            row = converted(name, entry, options.into, **kind)
            record(row)
            print(json.dumps({key: row[key] for key in ("type", "outcome", "said", "seconds")}), flush=True)
        bad += [] if right(entry, row) else [name]
    return bad


if __name__ == "__main__":
    main()

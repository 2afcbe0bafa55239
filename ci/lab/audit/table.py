"""ci/results/audit.json as Markdown: packages, findings in their graphs, and checks by hand."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).parents[2] / "results" / "audit.json"
CHECKS = Path(__file__).with_name("checks.yaml")


def table() -> str:
    """A row for each package; slower kernels (PX405) are of most, and need no check."""
    document = json.loads(RESULTS.read_text())
    checks: dict[str, dict[str, str]] = yaml.safe_load(CHECKS.read_text())
    lines = ["| package | graphs | errors and warnings | notes | checked by hand |", "|---|---|---|---|---|"]
    for row in document["rows"]:
        findings = [finding for file in row["files"] for finding in file.get("findings", ())]
        worse = _counted([each for each in findings if each["severity"] != "note"])
        notes = _counted([each for each in findings if each["severity"] == "note"])
        checked = "; ".join(
            f"{f'`{code}` ' * (code != '-')}{text}" for code, text in checks.get(row["package"], {}).items()
        )
        lines.append(f"| {row['package']} {row['version']} | {len(row['files'])} | {worse} | {notes} | {checked} |")
    made = f"`ci/lab/audit/run`, {document['created']}, ONNX Runtime {document['onnxruntime']}."
    return "\n".join([*lines, "", made])


def unchecked() -> list[str]:
    """Errors and warnings that nobody has checked."""
    checks: dict[str, dict[str, str]] = yaml.safe_load(CHECKS.read_text())
    return [
        f"{row['package']} {finding['code']}"
        for row in json.loads(RESULTS.read_text())["rows"]
        for file in row["files"]
        for finding in file.get("findings", ())
        if finding["severity"] != "note" and finding["code"] not in checks.get(row["package"], {})
    ]


def _counted(findings: list[dict[str, Any]]) -> str:
    """Codes, with the number of findings where there are several."""
    counts = Counter((each["code"], each["severity"]) for each in findings)
    return ", ".join(
        f"`{code}`{f' ({severity})' * (severity != 'note')}{f', {count} times' * (count > 1)}"
        for (code, severity), count in sorted(counts.items())
    )

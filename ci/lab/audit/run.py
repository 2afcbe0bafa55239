"""Findings of posexport audit in the .onnx files that packages of PyPI ship: ci/results/audit.json."""

import argparse
import datetime
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import onnxruntime

import posexport
from posexport.errors import PosexportError
from posexport.inspect.bench.run import commit

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "ci" / "results" / "audit.json"


def audited(wheel: Path, into: Path) -> dict[str, Any]:
    """The findings in all graphs of a package."""
    name, version, *_ = wheel.stem.split("-")
    folder = into / name
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.namelist() if member.endswith((".onnx", ".onnx.data", ".json"))]
        archive.extractall(folder, members)
    files = [_of_file(path, folder) for path in sorted(folder.rglob("*.onnx"))]
    return {"package": name.replace("_", "-").lower(), "version": version, "files": files}


def _of_file(path: Path, folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"file": str(path.relative_to(folder))}
    try:
        audit = posexport.audit(path, run=True, timeout=120)
    except PosexportError as err:
        return {**row, "refused": str(err)}
    findings = [{"code": each.code, "severity": each.severity, "message": each.message} for each in audit]
    return {**row, "findings": findings, "skipped": list(audit.skipped.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages; default: all")
    names = parser.parse_args().names
    at = Path(os.environ["AUDITED"])
    rows = {row["package"]: row for row in json.loads(RESULTS.read_text())["rows"]} if RESULTS.exists() else {}
    for wheel in sorted(at.glob("*.whl")):
        name = wheel.stem.split("-")[0].replace("_", "-").lower()
        if not names or name in names:
            rows[name] = audited(wheel, at / "files")
            print(name, sum(len(file.get("findings", ())) for file in rows[name]["files"]), flush=True)
    document = {
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "onnxruntime": onnxruntime.__version__,
        "rows": [rows[name] for name in sorted(rows)],
    }
    RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Records what a run of the tests gave on this interpreter with these libraries, from its JUnit files.

Usage: PYTHON -m ci.artefacts.pythons [--as WHICH] JUNIT ...

ci/test --python writes ci/results/pythons.json, by the interpreter's version; ci/lowest/run, with --as,
ci/results/versions.json.
"""

import argparse
import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "ci" / "results"
LIBRARIES = ("torch", "transformers", "numpy", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "tokenizers")


def counted(files: list[Path]) -> dict[str, Any]:
    """Tests by outcome; those that failed by name. Of a test in two files the later one counts."""
    every = [case for file in files for case in ElementTree.parse(file).iter("testcase")]
    cases = list({(case.get("classname"), case.get("name")): case for case in every}.values())
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
    }


def installed() -> dict[str, str]:
    """The versions of `LIBRARIES`, of those that are there."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--as", dest="which", metavar="WHICH")
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    record = RESULTS / ("versions.json" if arguments.which else "pythons.json")
    records = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    key = arguments.which or ".".join(platform.python_version_tuple()[:2])
    records[key] = {
        "python": platform.python_version(),
        **installed(),
        **counted(arguments.files),
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    record.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(records[key]))


if __name__ == "__main__":
    main()

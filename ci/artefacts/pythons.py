"""Records in ci/results/pythons.json what this interpreter's run of the tests gave, from its JUnit files.

Usage: PYTHON -m ci.artefacts.pythons JUNIT ..., which ci/test --python calls
"""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "ci" / "results" / "pythons.json"


def counted(files: list[Path]) -> dict[str, Any]:
    """Tests by outcome; those that failed by name."""
    cases = [case for file in files for case in ElementTree.parse(file).iter("testcase")]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
    }


def main() -> None:
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    minor = ".".join(platform.python_version_tuple()[:2])
    records[minor] = {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "numpy", "onnx", "onnxruntime-gpu")},
        **counted([Path(name) for name in sys.argv[1:]]),
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    RECORD.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(records[minor]))


if __name__ == "__main__":
    main()

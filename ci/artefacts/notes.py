"""Prints the notes of a version: its part of CHANGELOG.md.

python ci/artefacts/notes.py [VERSION]
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def heading(version: str, text: str) -> re.Match[str] | None:
    """``## 0.1.0 (not released)`` or ``## 0.1.0 (2026-12-01)``."""
    return re.search(rf"^## {re.escape(version)} \(([^)]*)\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from posexport.version import VERSION

    version = (sys.argv[1:] or [VERSION])[0].removeprefix("v")
    part = heading(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if part is None:
        raise SystemExit(f"CHANGELOG.md has no heading '## {version} (DATE)'")
    print(part[2].strip())


if __name__ == "__main__":
    main()

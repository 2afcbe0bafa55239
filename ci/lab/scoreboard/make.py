"""Writes a tiny checkpoint with the installed transformers: ``DIRECTORY ENTRY``, the entry of the plan as JSON."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent.parent / "through"))
from tiny import make

if __name__ == "__main__":
    make(Path(sys.argv[1]), json.loads(sys.argv[2]))

"""Prints the path of an interpreter by its version.

Usage: python -m ci.artefacts.interpreter 3.12
"""

import shutil
import subprocess
import sys
from pathlib import Path


def interpreter(version: str) -> str:
    """The interpreter of that version: of the path, or of pyenv."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *installed):
        # a shim of pyenv is on the path for versions that are not chosen, and fails
        if candidate and not subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode:
            return str(candidate)
    raise SystemExit(f"there is no python{version} here; install it, or choose another version with --python")


if __name__ == "__main__":
    print(interpreter(sys.argv[1]))

"""Installs posexport in a fresh environment, away from the checkout, and runs the tests that come with it.

Usage: python ci/artefacts/smoke.py TARGET [--python PYTHON] [--extras onnxruntime]

TARGET is a wheel, an sdist or a checkout. Needs nothing but Python, on Linux, macOS and Windows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
#: variables that would lead to another installation
_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def run(*words: str | Path, cwd: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    subprocess.run([str(word) for word in words], cwd=cwd, env=environment, check=True)


def environment(folder: Path, python: str, *steps: list[str]) -> Path:
    """The python of a new environment in ``folder``, with the requirements of each step installed in turn."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    inner = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS]
    for requirements in steps:
        run(*pip, *requirements, cwd=folder)
    return inner


def smoke(target: Path, python: str = sys.executable, extras: str = "onnxruntime") -> None:
    """CalledProcessError where a step fails."""
    with tempfile.TemporaryDirectory(prefix="posexport-smoke-") as name:
        folder = Path(name)
        # PyTorch first and alone, as ci/setup does
        first = [["torch"]] if "export" in extras.split(",") else []
        inner = environment(folder / "environment", python, *first, [f"{target.resolve()}[{extras}]", "pytest"])
        empty = folder / "empty"
        empty.mkdir()
        run(inner, "-m", "posexport", "env", cwd=empty)
        run(inner, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "posexport.testing.smoke", cwd=empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--extras", default="onnxruntime")
    arguments = parser.parse_args()
    smoke(arguments.target, arguments.python, arguments.extras)


if __name__ == "__main__":
    main()

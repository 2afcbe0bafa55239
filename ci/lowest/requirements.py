"""Prints requirements for pip: every lower bound of pyproject.toml as a pin, and the pinned PyTorch and test tools."""

import re
import tomllib
from pathlib import Path

#: what is installed at its pin of ci/constraints.txt
PINNED = ("torch", "pytest", "hypothesis")
EXTRAS = ("onnxruntime", "export", "hub", "plots")

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
pins = dict(line.split("==") for line in Path("ci/constraints.txt").read_text().splitlines() if "==" in line)
bounds = [*project["dependencies"], *(bound for extra in EXTRAS for bound in project["optional-dependencies"][extra])]
for bound in bounds:
    match = re.fullmatch(r"([\w-]+)>=([\d.]+)", bound)
    if match is None:
        raise SystemExit(f"ci/lowest: {bound!r} has no lower bound of the form name>=version")
    if match[1] not in PINNED:
        print(f"{match[1]}=={match[2]}")
for name in PINNED:
    print(f"{name}=={pins[name]}")

"""Prints requirements for pip, of what a user installs and of the test tools.

Usage: python ci/lowest/requirements.py lowest|torch|newest

lowest: every lower bound of pyproject.toml as a pin, and the pinned PyTorch; torch: its lower bound too; newest: none.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

#: installed at its pin of ci/constraints.txt
TOOLS = ("pytest", "hypothesis")
EXTRAS = ("onnxruntime", "export", "hub", "plots")

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
pins = dict(line.split("==") for line in Path("ci/constraints.txt").read_text().splitlines() if "==" in line)


def bounds_of(requirements: list[str]) -> Iterator[tuple[str, str]]:
    """Names and lower bounds; extras of posexport itself are followed."""
    for requirement in requirements:
        if inner := re.fullmatch(r"posexport\[([\w,]+)\]", requirement):
            for extra in inner[1].split(","):
                yield from bounds_of(project["optional-dependencies"][extra])
        elif match := re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement):
            yield match[1], match[2]
        else:
            raise SystemExit(f"ci/lowest: {requirement!r} has no lower bound of the form name>=version")


def main(which: str) -> None:
    bounds = dict(bounds_of([*project["dependencies"], f"posexport[{','.join(EXTRAS)}]"]))
    if which == "newest":
        print("\n".join(bounds))
    else:
        lowest = bounds if which == "torch" else bounds | {"torch": pins["torch"]}
        print("\n".join(f"{name}=={version}" for name, version in lowest.items()))
    print("\n".join(f"{name}=={pins[name]}" for name in TOOLS))


main(*sys.argv[1:])

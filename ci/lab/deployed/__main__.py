"""``ci/lab/shapes make NAME DIR``."""

import argparse
from pathlib import Path

from ci.lab.deployed.make import SHAPES, make


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/lab/shapes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write a checkpoint with random weights")
    making.add_argument("name", choices=SHAPES)
    making.add_argument("folder", type=Path)
    making.add_argument("--layers", type=int, help="of that many layers only")
    arguments = parser.parse_args()
    make(arguments.name, arguments.folder, arguments.layers)


if __name__ == "__main__":
    main()

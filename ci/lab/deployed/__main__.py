"""Checkpoints of deployed shapes with random weights, and what their conversion takes."""

import argparse
from pathlib import Path

from ci.lab.deployed.make import SHAPES, make
from ci.lab.deployed.measure import RIVALS, ROOT, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/lab/shapes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write a checkpoint")
    making.add_argument("name", choices=SHAPES)
    making.add_argument("folder", type=Path)
    making.add_argument("--layers", type=int, help="of that many layers only")
    measuring = commands.add_parser("measure", help="measure its conversions, which have no row in ci/results yet")
    measuring.add_argument("names", nargs="+", choices=SHAPES, metavar="NAME")
    measuring.add_argument("--checkpoints", type=Path, default=ROOT / ".cache" / "shapes", help="made where missing")
    measuring.add_argument("--no-proofs", action="store_true", help="only conversions without a proof")
    measuring.add_argument("--rivals", nargs="*", choices=RIVALS, default=[], help="other exporters too")
    measuring.add_argument("--again", action="store_true", help="also what has a row")
    options = parser.parse_args()
    if options.command == "make":
        make(options.name, options.folder, options.layers)
        return
    for name in options.names:
        checkpoint = (options.checkpoints / name).absolute()
        if not checkpoint.exists():
            make(name, checkpoint)
        measure(name, checkpoint, ["posexport", *options.rivals], proofs=not options.no_proofs, again=options.again)


if __name__ == "__main__":
    main()

"""Checkpoints of deployed shapes with random weights, and what their conversion takes."""

import argparse
from pathlib import Path

from ci.lab.deployed import steps
from ci.lab.deployed.make import SHAPES, make
from ci.lab.deployed.measure import RIVALS, ROOT, measure
from ci.lab.deployed.picture import draw


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/lab/shapes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="docs/pictures/costs.svg: cost against the number of layers")
    making = commands.add_parser("make", help="write a checkpoint")
    making.add_argument("name", choices=SHAPES)
    making.add_argument("folder", type=Path)
    making.add_argument("--layers", type=int, help="of that many layers only")
    measuring = commands.add_parser("measure", help="measure its conversions, which have no row in ci/results yet")
    measuring.add_argument("names", nargs="+", choices=SHAPES, metavar="NAME")
    measuring.add_argument("--checkpoints", type=Path, default=ROOT / ".cache" / "shapes", help="made where missing")
    measuring.add_argument("--no-proofs", action="store_true", help="only conversions without a proof")
    measuring.add_argument("--rivals", nargs="*", choices=RIVALS, default=[], help="other exporters too")
    measuring.add_argument("--layers", type=int, help="of checkpoints with that many layers only")
    measuring.add_argument("--again", action="store_true", help="also what has a row")
    stepping = commands.add_parser(
        "steps", help="decode steps beside onnxruntime-genai's graph (ci/lab/rivals/setup genai)"
    )
    stepping.add_argument("name", choices=SHAPES)
    stepping.add_argument("--checkpoints", type=Path, default=ROOT / ".cache" / "shapes", help="made where missing")
    stepping.add_argument("--precision", action="append", choices=["fp32", "int4"], help="both by default")
    stepping.add_argument("--past", action="append", type=int, help="tokens before the steps: 256, 512 and 2048")
    options = parser.parse_args()
    if options.command == "make":
        make(options.name, options.folder, options.layers)
        return
    if options.command == "draw":
        draw()
        return
    if options.command == "steps":
        checkpoint = (options.checkpoints / options.name).absolute()
        if not checkpoint.exists():
            make(options.name, checkpoint, None)
        precisions, pasts = options.precision or ["fp32", "int4"], options.past or [256, 512, 2048]
        steps.measure(options.name, checkpoint, precisions, pasts, options.checkpoints.absolute() / "steps")
        return
    for name in options.names:
        folder = name if options.layers is None else f"{name}-{options.layers}"
        checkpoint = (options.checkpoints / folder).absolute()
        if not checkpoint.exists():
            make(name, checkpoint, options.layers)
        exporters = ["posexport", *options.rivals]
        measure(name, checkpoint, exporters, options.layers, proofs=not options.no_proofs, again=options.again)


if __name__ == "__main__":
    main()

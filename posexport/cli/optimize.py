"""posexport optimize"""

import sys
from pathlib import Path
from typing import Any

import click

from posexport.base.options.commands import OPTIMIZE_GROUPS, OptimizeOptions
from posexport.cli import complete
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups


@click.command("optimize", cls=Command, groups=groups(OptimizeOptions, OPTIMIZE_GROUPS, {}))
@click.argument("file", type=click.Path(path_type=Path), shell_complete=complete.bundles_or_models)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The new file.")
@all_of(OptimizeOptions)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: Path, output: Path, as_json: bool, **choices: Any) -> None:
    """Make an ONNX file of any tool faster, without its source.

    FILE is an .onnx file. Attention, rotations, normalisations and activations become operators that the target
    has kernels for, by the passes of posexport convert; inputs and outputs stay as they are. The new file is written
    if calls of both files have the same outputs; else the exit code is 1.

    \b
    Example:
        posexport optimize model.onnx -o faster.onnx --bench
        posexport optimize model.onnx -o half.onnx --target cuda --precision fp16
    """
    import msgspec

    import posexport

    done = posexport.optimize(file, output, **choices)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(done), indent=2).decode())
    else:
        click.echo("\n".join(done.lines()))
    sys.exit(1 if done.refused else 0)

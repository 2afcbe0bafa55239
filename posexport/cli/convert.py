"""posexport convert"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from posexport.base.options.option import OUTPUT
from posexport.cli import complete, options
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups
from posexport.cli.options import check_source
from posexport.cli.terminal import bar, fit, remark
from posexport.conversion.options import GROUPS, ConvertOptions


@click.command("convert", cls=Command, groups=groups(ConvertOptions, GROUPS, {OUTPUT: ("output",)}))
@click.argument("source", shell_complete=complete.sources, callback=check_source)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory of the bundle.")
@all_of(ConvertOptions)
@options.verbosity_options
@options.json_option
def command(source: str, output: Path, as_json: bool, **choices: Any) -> None:
    """Convert a model to ONNX and prove that it is right.

    SOURCE is a directory with config.json and model.safetensors, a Hub id (org/name, org/name@revision), a built-in
    model (posexport list models) or path/to/file.py:factory. DIR becomes a bundle: the ONNX model, its tokenizer and
    configuration, and the proof, which compares it with PyTorch over a grid of lengths, batch sizes and paddings. If
    the ONNX model is less accurate than PyTorch float32, nothing is written and the exit code is 1.

    \b
    Example:
        posexport convert path/to/all-MiniLM-L6-v2 -o minilm
        posexport convert encoder-shaw-kv --set clip=8 -o shaw
    """
    import posexport

    # options that are not on the command line have the record's defaults
    options_given = {name: value for name, value in choices.items() if value != ()}
    # a Python file of the user's may print; stdout is for the result
    with bar("Converting") as progress, redirect_stdout(sys.stderr):
        done = posexport.convert(source, output, progress=progress, remark=remark, **options_given)
    click.echo(done.to_json() if as_json else done.to_text(**fit()))
    sys.exit(0 if done.good else 1)

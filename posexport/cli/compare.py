"""posexport compare"""

import sys
from pathlib import Path

import click

from posexport.base.targets.precisions import FP32, PRECISIONS, PrecisionName
from posexport.cli import complete, options
from posexport.cli.command import Command
from posexport.cli.terminal import bar


@click.command("compare", cls=Command)
@click.option(
    "--encodings",
    "chosen",
    multiple=True,
    metavar="NAME,...",
    shell_complete=complete.names("encodings"),
    help="Encodings to compare, separated by commas (repeatable); default: all. nope is always added.",
)
@options.number_option("--steps", "Training steps.", default=200, show_default=True)
@options.number_option("--seed", "Seed of weights and data.", least=0, default=0, show_default=True)
@click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    multiple=True,
    help="Precision of the models that are compared, beside float32 (repeatable).",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for the tables.")
@options.number_option("--jobs", "Training processes, one thread each.", most=1024, default=2, show_default=True)
@click.option("--force", is_flag=True, help="Replace a comparison in the directory.")
@options.verbosity_options
@options.json_option
def command(
    chosen: tuple[str, ...],
    steps: int,
    seed: int,
    precision: tuple[PrecisionName, ...],
    output: Path,
    jobs: int,
    force: bool,
    as_json: bool,
) -> None:
    """Train and export the same small model with every encoding.

    Each model learns three tasks per token and is evaluated in ONNX Runtime at the trained length (64), twice and four
    times it: copy (which letter is two places earlier?), order (is this token before its partner?) and marker (how far
    is the marker, roughly, and on which side?). Without positions no model does better than guessing. A table of
    positions that ends at the trained length shows limit beyond it. The tables also have parameters, file size, latency
    and peak memory relative to nope.

    Writes compare.csv, compare.json and compare.html (with plots), and every encoding's model. Exits 1 if an encoding
    could not be trained or exported.

    \b
    Example:
        posexport compare -o comparison
        posexport compare --precision int8 --precision int4 -o comparison
        posexport compare --encodings sinusoidal,t5,rope,relative-key --steps 500 -o comparison
    """
    from posexport.errors import PosexportError
    from posexport.study.compare.comparison import compare
    from posexport.study.compare.records import Setup, to_text

    names = [name.strip() for part in chosen for name in part.split(",") if name.strip()]
    if chosen and not names:
        raise PosexportError(
            "--encodings names none; give names as posexport list encodings shows them, or leave it out"
        )
    with bar("Comparing") as progress:
        document = compare(
            output,
            names,
            Setup(steps=steps, seed=seed, precisions=[name for name in dict.fromkeys(precision) if name != FP32.name]),
            jobs=jobs,
            force=force,
            progress=progress,
        )
    if as_json:
        click.echo(document.to_json().decode())
    else:
        click.echo(to_text(document))
        click.echo(f"{output / 'compare.html'}")
    sys.exit(0 if document.good else 1)

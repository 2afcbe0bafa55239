"""posexport compare"""

import sys
from pathlib import Path

import click

from posexport.cli import options
from posexport.cli.progress import bar


@click.command("compare")
@click.option(
    "--encodings",
    "chosen",
    multiple=True,
    metavar="NAME,...",
    help="Which to compare, by name, separated by commas (repeatable); default: all. nope is always added.",
)
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Steps of training.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and data.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The directory of the tables.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1, max=1024),
    default=2,
    show_default=True,
    help="Processes that train, of one thread each.",
)
@click.option("--force", is_flag=True, help="Begin again: results that are in the directory are removed.")
@options.json_option
def command(
    chosen: tuple[str, ...], steps: int, seed: int, output: Path, jobs: int, force: bool, as_json: bool
) -> None:
    """Train the same small encoder with every encoding, export it, and tabulate what it can do and what it costs.

    Three questions about order are asked of every token, at the trained length (64), twice and four times it, on ONNX
    Runtime: copy (which letter stands two places before me?), order (do I stand before my partner?) and marker (how
    far before or behind the marker am I, roughly?). Without positions none can be answered better than by guessing. A
    table of positions that ends at the trained length shows limit beyond it. Beside that: parameters, size of the file,
    latency and peak memory relative to nope.

    Writes compare.csv, compare.json and compare.html (with plots), and every encoding's model and result, so that the
    same command goes on where an interrupted one ended. Exits 1 if an encoding could not be trained or exported.

    \b
    Example:
        posexport compare -o comparison
        posexport compare --encodings sinusoidal,t5,rope,relative-key --steps 500 -o comparison
    """
    from posexport.compare.records import Setup
    from posexport.compare.run import compare
    from posexport.compare.table import to_text
    from posexport.errors import PosexportError

    names = [name.strip() for part in chosen for name in part.split(",") if name.strip()]
    if chosen and not names:
        raise PosexportError(
            "--encodings names none; give names as posexport list encodings shows them, or leave it out"
        )
    with bar("Comparing") as progress:
        try:
            document = compare(
                output,
                names,
                Setup(steps=steps, seed=seed),
                jobs=jobs,
                force=force,
                progress=progress,
                remark=lambda text: click.echo(text, err=True),
            )
        except KeyboardInterrupt:
            click.echo(
                f"encodings that are finished stay in {output}; the same command goes on with the rest", err=True
            )
            raise
    if as_json:
        click.echo(document.to_json().decode())
    else:
        click.echo(to_text(document))
        click.echo(f"{output / 'compare.html'}")
    sys.exit(0 if document.good else 1)

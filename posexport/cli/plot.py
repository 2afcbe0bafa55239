"""posexport plot"""

from pathlib import Path

import click

from posexport.cli import options


@click.command("plot")
@click.argument("encoding")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write: .png, .svg or .html."
)
@options.set_option
@click.option(
    "--length",
    type=click.IntRange(min=2, max=2048),
    help="How many positions to show; default 64, or as many as there are.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(encoding: str, output: Path, settings: tuple[str, ...], length: int | None, force: bool) -> None:
    """Draw what ENCODING does to the numbers.

    What is added to embeddings as a heat map and its two slices, for sinusoids also the shift matrix T(k) with its
    residual; what is added to scores against the distance and as a matrix, with the rows of a table of distances;
    rotations by how scores fade with the distance. A .html file holds everything it needs.

    \b
    Example:
        posexport plot sinusoidal --set hidden=128 --length 100 -o sinusoidal.png
        posexport plot relative-key --set max_positions=10 -o relative.html
    """
    from posexport.plots.draw import plot

    kinds = plot(encoding, settings, output, length=length, force=force)
    click.echo(f"{output}: {', '.join(kinds)}")

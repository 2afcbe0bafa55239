"""posexport plot"""

from pathlib import Path

import click

from posexport.cli import complete, options
from posexport.cli.command import Command


@click.command("plot", cls=Command)
@click.argument("subject", metavar="ENCODING|DIR", shell_complete=complete.encodings_or_bundles)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write: .png, .svg or .html."
)
@options.set_option
@options.number_option(
    "--positions", "How many positions to show; default 64, or as many as there are.", least=2, most=2048
)
@options.allow_pickle_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    subject: str, output: Path, settings: tuple[str, ...], positions: int | None, allow_pickle: bool, force: bool
) -> None:
    """Draw a position encoding, or all of a checkpoint.

    ENCODING is a name. Position vectors are drawn as a heat map with slices, sinusoids also with their shift matrix
    T(k); attention biases against the distance and as a matrix; rotations by their wavelengths and the decay of scores.
    Learned tables have random weights.

    DIR, a checkpoint or a bundle: its learned tables, biases or rotations, of all layers. One line under each
    group of panels says how to read it. A .html file holds everything it needs.

    \b
    Example:
        posexport plot sinusoidal --set hidden=128 --positions 100 -o sinusoidal.png
        posexport plot path/to/checkpoint -o positions.png
    """
    from posexport.study.plots.draw import plot

    kinds = plot(subject, settings, output, length=positions, force=force, allow_pickle=allow_pickle)
    click.echo(f"{output}: {', '.join(kinds)}")

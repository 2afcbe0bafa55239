"""posexport plot"""

import json
import sys
from pathlib import Path

import click

from posexport.cli import complete, options
from posexport.cli.command import Command


@click.command("plot", cls=Command)
@click.argument("subject", metavar="ENCODING|DIR", shell_complete=complete.encodings_or_bundles)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write: .png, .svg or .html.")
@click.option("--check", is_flag=True, help="Check the shift properties of ENCODING instead; exits 1 if one fails.")
@options.set_option
@options.number_option(
    "--positions", "How many positions to show; default 64, or as many as there are.", least=2, most=2048
)
@options.allow_pickle_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.json_option
def command(
    subject: str,
    output: Path | None,
    check: bool,
    settings: tuple[str, ...],
    positions: int | None,
    allow_pickle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Draw a position encoding, or all of a checkpoint.

    ENCODING is a name. Position vectors are drawn as a heat map with slices, sinusoids also with their shift matrix
    T(k); attention biases against the distance and as a matrix; rotations by their wavelengths and the decay of scores.
    Learned tables have random weights.

    DIR, a checkpoint or a bundle: its learned tables, biases or rotations, of all layers. One line under each
    group of panels says how to read it. A .html file holds everything it needs.

    --check: sinusoids have a matrix T(k) with T(k) PE[t] = PE[t + k] for every t. Relative encodings give the same
    terms when all positions are shifted, and their biases depend on the distance alone. Rotations keep norms, and dot
    products of rotated vectors depend on the distance alone. All in float64, to 1e-9.

    \b
    Example:
        posexport plot sinusoidal --set hidden=128 --positions 100 -o sinusoidal.png
        posexport plot path/to/checkpoint -o positions.png
        posexport plot rope --set layout=interleaved --check
    """
    if output is not None and not check:
        from posexport.study.plots.draw import plot

        kinds = plot(subject, settings, output, length=positions, force=force, allow_pickle=allow_pickle)
        click.echo(json.dumps({"file": str(output), "panels": kinds}) if as_json else f"{output}: {', '.join(kinds)}")
        return
    if not check or output is not None:
        raise click.UsageError("give -o FILE for a picture, or --check to check shift properties instead")
    from posexport.study.shift_check.shift_check import check_shift

    report = check_shift(subject, settings)
    click.echo(report.to_json() if as_json else report.to_text())
    sys.exit(0 if report.good else 1)

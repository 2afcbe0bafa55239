"""posexport check-shift"""

import sys

import click

from posexport.cli import options


@click.command("check-shift")
@click.argument("encoding")
@options.set_option
@options.json_option
def command(encoding: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Check what ENCODING claims about positions that move, each property with its figure.

    Sinusoids have a matrix T(k) with T(k) PE[t] = PE[t + k] for every t; terms of relative encodings stay when all
    positions move, and biases depend on the distance alone; rotations keep lengths, and products of rotated vectors
    depend on the distance alone. All in float64, to 1e-9. Exits 1 if one fails.

    \b
    Example:
        posexport check-shift sinusoidal --set hidden=512
        posexport check-shift rope --set layout=interleaved --json
    """
    from posexport.shift_check.run import check_shift

    report = check_shift(encoding, settings)
    click.echo(report.to_json() if as_json else report.to_text())
    sys.exit(0 if report.good else 1)

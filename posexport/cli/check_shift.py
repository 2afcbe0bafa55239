"""posexport check-shift"""

import sys

import click

from posexport.cli import options
from posexport.cli.command import Command


@click.command("check-shift", cls=Command)
@options.encoding_argument
@options.set_option
@options.json_option
def command(encoding: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Check the shift properties of an encoding.

    Sinusoids have a matrix T(k) with T(k) PE[t] = PE[t + k] for every t. Relative encodings give the same terms when
    all positions are shifted, and their biases depend on the distance alone. Rotations keep norms, and dot products of
    rotated vectors depend on the distance alone. All in float64, to 1e-9. Exits 1 if a property does not hold.

    \b
    Example:
        posexport check-shift sinusoidal --set hidden=512
        posexport check-shift rope --set layout=interleaved --json
    """
    from posexport.study.shift_check.shift_check import check_shift

    report = check_shift(encoding, settings)
    click.echo(report.to_json() if as_json else report.to_text())
    sys.exit(0 if report.good else 1)

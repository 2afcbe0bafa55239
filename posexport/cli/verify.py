"""posexport verify"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from posexport.cli import complete, options
from posexport.cli import options as junit_file
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups
from posexport.cli.terminal import bar, fit, remark
from posexport.options.commands import GROUPS, VerifyOptions
from posexport.options.option import SOURCE

_ABOUT_SOURCE = ("task", "settings", "definition", "allow_pickle", "drop_weights")


@click.command("verify", cls=Command, groups=groups(VerifyOptions, GROUPS, {SOURCE: ("against",)}))
@click.argument("target", type=click.Path(path_type=Path), shell_complete=complete.bundles_or_models)
@click.option(
    "--against",
    metavar="SOURCE",
    shell_complete=complete.sources,
    help="Check the whole grid against this source (needs PyTorch).",
)
@all_of(VerifyOptions)
@options.verbosity_options
@junit_file.option
@options.json_option
def command(target: Path, against: str | None, junit: Path | None, as_json: bool, **choices: Any) -> None:
    """Check a bundle or any .onnx file against its source.

    TARGET is a bundle or an .onnx file. With --against, PyTorch computes every point of a grid of lengths, batch sizes
    and paddings in float64, and the graph's outputs are compared. Without it, only the sample stored in the bundle is
    checked, which needs no PyTorch. Exits 1 if a point exceeds its tolerance.

    An .onnx of another tool (optimum, torch.onnx.export) gets the inputs that transformers would give it, and may
    reject inputs beyond its limit with any message.

    \b
    Example:
        posexport verify minilm
        posexport verify minilm --against path/to/all-MiniLM-L6-v2 --length 1 --length 512
        posexport verify minilm --junit parity.xml
    """
    import posexport

    options_given = {name: value for name, value in choices.items() if value not in ((), None, {})}
    if against is None and (option := next((name for name in _ABOUT_SOURCE if options_given.get(name)), None)):
        flag = "set" if option == "settings" else option.replace("_", "-")
        raise posexport.PosexportError(f"--{flag} is about the source to compare with; name it with --against SOURCE")
    # a Python file of the user's may print; stdout is for the result
    with junit_file.writer(junit, target) as write, bar("Verifying") as progress, redirect_stdout(sys.stderr):
        report = posexport.verify(target, against, progress=progress, remark=remark, **options_given)
        write(report)
    click.echo(report.to_json().decode() if as_json else report.to_text(**fit()), nl=as_json)
    sys.exit(0 if report.passed else 1)

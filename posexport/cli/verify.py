"""posexport verify"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posexport.base.options.commands import GROUPS, VerifyOptions
from posexport.base.options.option import SOURCE
from posexport.cli import complete, options
from posexport.cli import options as junit_file
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups
from posexport.cli.terminal import bar, fit, remark

if TYPE_CHECKING:
    from posexport.proof.report.report import Report

_ABOUT_SOURCE = ("task", "settings", "definition", "allow_pickle", "drop_weights", "adapters")


@click.command("verify", cls=Command, groups=groups(VerifyOptions, GROUPS, {SOURCE: ("against",)}))
@click.argument("target", type=click.Path(path_type=Path), shell_complete=complete.bundles_or_models)
@click.option(
    "--against",
    metavar="SOURCE",
    shell_complete=complete.sources,
    help="Check the whole grid against this source (needs PyTorch).",
)
@all_of(VerifyOptions)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also compare every file with this certificate, before anything is run.",
)
@click.option(
    "--write-certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a certificate if the check passes: digests of all files, verdict, versions; replaces FILE.",
)
@options.verbosity_options
@junit_file.option
@options.json_option
def command(
    target: Path,
    against: str | None,
    junit: Path | None,
    certificate: Path | None,
    write_certificate: Path | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Check a bundle or any .onnx file against its source.

    TARGET is a bundle or an .onnx file. With --against, PyTorch computes every point of a grid of lengths, batch sizes
    and paddings in float64, and the graph's outputs are compared. Without it, only the sample stored in the bundle is
    checked, which needs no PyTorch. Exits 1 if a point exceeds its tolerance.

    An .onnx of another tool (optimum, torch.onnx.export) gets the inputs that transformers would give it, and may
    reject inputs beyond its limit with any message.

    A certificate is for the page that offers a model: who downloads the files compares them with it, without the
    source. For a lone .onnx, --certificate compares the files alone.

    \b
    Example:
        posexport verify minilm
        posexport verify minilm --against path/to/all-MiniLM-L6-v2 --length 1 --length 512
        posexport verify minilm --junit parity.xml
        posexport verify minilm --write-certificate minilm.json
        posexport verify minilm --certificate minilm.json
    """
    import posexport

    if certificate is not None:
        from posexport.run.bundle.certificate import check_certificate

        certified = check_certificate(target, certificate)
        remark(certified.to_text())
        if against is None and target.is_file():
            click.echo(certified.to_json().decode() if as_json else f"{target} is certified", nl=not as_json)
            return
    options_given = {name: value for name, value in choices.items() if value not in ((), None, {})}
    if against is None and (option := next((name for name in _ABOUT_SOURCE if options_given.get(name)), None)):
        flag = "set" if option == "settings" else option.replace("_", "-")
        raise posexport.PosexportError(f"--{flag} is about the source to compare with; name it with --against SOURCE")
    # a Python file of the user's may print; stdout is for the result
    with junit_file.writer(junit, target) as write, bar("Verifying") as progress, redirect_stdout(sys.stderr):
        report = posexport.verify(target, against, progress=progress, remark=remark, **options_given)
        write(report)
    click.echo(report.to_json().decode() if as_json else report.to_text(**fit()), nl=as_json)
    if write_certificate is not None and report.passed:
        _write(write_certificate, target, against, report)
    sys.exit(0 if report.passed else 1)


def _write(path: Path, target: Path, against: str | None, report: "Report") -> None:
    from importlib.metadata import version

    from posexport.base.system.extras import installed_runtimes
    from posexport.base.system.files import write_whole
    from posexport.run.bundle.certificate import certify

    certificate = certify(
        target,
        verdict=report.verdict,
        compared_with="sample" if against is None else "source",
        provider=report.provider,
        tools={name: version(name) for name in ("numpy", "onnx", *installed_runtimes())},
    )
    write_whole(path, certificate.to_json(), force=True)

"""posexport verify"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from posexport.cli import complete, options
from posexport.cli import junit as junit_file
from posexport.cli.command import Command
from posexport.cli.progress import bar, remark
from posexport.cli.terminal import fit
from posexport.targets.precisions import PRECISIONS

_GROUPS = {
    "Source to compare with": ("against", "task", "settings", "allow_pickle", "definition"),
    "Proof": ("lengths", "tolerance", "precision", "emulate", *options.RUNTIME, "provider_options"),
}


@click.command("verify", cls=Command, groups=_GROUPS)
@click.argument("target", type=click.Path(path_type=Path), shell_complete=complete.bundles_or_models)
@click.option(
    "--against",
    metavar="SOURCE",
    shell_complete=complete.sources,
    help="Check the whole grid against this source (needs PyTorch).",
)
@options.task_option
@options.set_option
@options.allow_pickle_option
@options.definition_option
@click.option(
    "--tolerance",
    type=float,
    metavar="ERROR",
    help="Pass where max |y - y64| / max |y64| is at most this, such as 1e-3; the verdict is then not 'proven'.",
)
@options.variant_option
@click.option(
    "--emulate",
    type=click.Choice([name for name, each in PRECISIONS.items() if each.half and not each.quantized]),
    help="Round every operator's output to this precision, as a GPU would; of a float32 model positions too.",
)
@options.provider_option
@options.provider_options_option
@options.length_option
@options.threads_option
@options.verbosity_options
@junit_file.option
@options.json_option
def command(
    target: Path,
    against: str | None,
    settings: tuple[str, ...],
    lengths: tuple[int, ...],
    junit: Path | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Check a bundle or any .onnx file against its source.

    TARGET is a bundle or an .onnx file. With --against, PyTorch computes every point of a grid of lengths, batch sizes
    and paddings in float64, and the graph's outputs are compared. Without it, only the sample stored in the bundle is
    checked, which needs no PyTorch. Exits 1 if a point exceeds its tolerance.

    An .onnx of another tool (optimum, torch.onnx.export) gets the inputs that transformers would give it, and may
    reject inputs beyond its limit with its own message.

    \b
    Example:
        posexport verify minilm
        posexport verify minilm --against path/to/all-MiniLM-L6-v2 --length 1 --length 512
        posexport verify minilm --junit parity.xml
    """
    import posexport

    settings_of_source: dict[str, Any] = {}
    if against is None:
        about_source = {"--set": settings}
        for name in ("task", "allow_pickle", "definition"):
            about_source[f"--{name.replace('_', '-')}"] = choices[name]
        for name in (name for name, value in about_source.items() if value):
            raise posexport.PosexportError(f"{name} is about the source to compare with; name it with --against SOURCE")
    else:
        from posexport.sources.settings import parse  # imports torch, which a stored sample does not need

        settings_of_source = parse(settings)
    # a Python file of the user's may print; stdout is for the result
    with junit_file.writer(junit, target) as write, bar("Verifying") as progress, redirect_stdout(sys.stderr):
        report = posexport.verify(
            target,
            against,
            settings=settings_of_source,
            lengths=lengths or None,
            progress=progress,
            remark=remark,
            **choices,
        )
        write(report)
    click.echo(report.to_json().decode() if as_json else report.to_text(**fit()), nl=as_json)
    sys.exit(0 if report.passed else 1)

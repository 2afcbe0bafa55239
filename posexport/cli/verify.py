"""posexport verify"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from posexport.cli import options
from posexport.cli.progress import bar


@click.command("verify")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--against", metavar="SOURCE", help="Check the whole grid against this source; needs PyTorch.")
@options.task_option
@options.set_option
@options.allow_pickle_option
@options.as_transformers_option
@options.provider_option
@options.length_option
@options.threads_option
@options.json_option
def command(
    target: Path,
    against: str | None,
    task: str | None,
    settings: tuple[str, ...],
    allow_pickle: bool,
    as_transformers: bool,
    provider: str,
    lengths: tuple[int, ...],
    threads: int,
    as_json: bool,
) -> None:
    """Prove TARGET, a bundle or an .onnx file, over a grid of lengths, batches and paddings.

    With --against, every point of the grid is computed by PyTorch in float64 and compared. Without it, the sample that
    the bundle carries is checked, which needs no PyTorch. Exits 1 if a point misses its tolerance.

    An .onnx of another tool (optimum, torch.onnx.export) is fed as transformers feeds it, and may refuse inputs beyond
    its limit in its own words.

    \b
    Example:
        posexport verify minilm
        posexport verify minilm --against path/to/all-MiniLM-L6-v2 --length 1 --length 512
    """
    from posexport.errors import PosexportError
    from posexport.parity.table import plain
    from posexport.verify import verify

    loading = None
    if against is None:
        given = [
            name for name, value in (("--task", task), ("--set", settings), ("--allow-pickle", allow_pickle)) if value
        ]
        given += ["--as-transformers"] if as_transformers else []
        if given:
            raise PosexportError(f"{given[0]} is about the source to compare with; name it with --against SOURCE")
    else:
        from posexport.sources.load import LoadOptions

        loading = LoadOptions(task=task, settings=settings, allow_pickle=allow_pickle, as_transformers=as_transformers)
    # a Python file of the user's may print; stdout is for the result
    with bar("Verifying") as progress, redirect_stdout(sys.stderr):
        report = verify(
            target,
            against=against,
            options=loading,
            provider=provider,
            lengths=lengths or None,
            threads=threads,
            progress=progress,
            remark=lambda text: click.echo(text, err=True),
        )
    click.echo(report.to_json().decode() if as_json else plain(report), nl=as_json)
    sys.exit(0 if report.passed else 1)

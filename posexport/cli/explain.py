"""posexport explain"""

import sys
from pathlib import Path

import click

from posexport.cli import options


@click.command("explain")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--length", type=click.IntRange(min=1), help="New tokens; default: 128, or 1 with --past.")
@click.option("--past", type=click.IntRange(min=0), help="Tokens in a decoder's cache.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Rows.")
@options.provider_option
@options.threads_option
@options.json_option
def command(
    directory: Path,
    length: int | None,
    past: int | None,
    batch: int,
    provider: str,
    threads: int,
    as_json: bool,
) -> None:
    """Say how the bundle in DIR computes attention and positions, and what that costs.

    For each type of attention and rotation: the lowering that was chosen, and why others were not. Then ONNX Runtime's
    own profile of a few calls: its kernels, where they ran, and how much of the time positions, attention and all else
    take. Graphs of one bundle are told apart.

    \b
    Example:
        posexport explain shaw --length 512 --threads 2
        posexport explain smollm --past 2048
    """
    from posexport.explain.run import explain

    found = explain(directory, length=length, past=past, batch=batch, provider=provider, threads=threads)
    if as_json:
        click.echo(found.to_json())
        return
    from rich.console import Console

    from posexport.explain.table import shown

    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(shown(found))

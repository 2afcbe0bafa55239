"""posexport report"""

from pathlib import Path

import click

from posexport.cli import options
from posexport.cli.command import Command
from posexport.cli.terminal import bar


@click.command("report", cls=Command)
@options.bundle_argument
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .html file to write.")
@click.option(
    "--bench",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Time and memory by length: a document of posexport bench -o (repeatable).",
)
@click.option("--text", "texts", multiple=True, help="A text that is answered, in place of examples (repeatable).")
@click.option("--no-run", is_flag=True, help="Do not call the model: no times, no answers, no check of its sample.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.verbosity_options
def command(
    directory: Path, output: Path, bench: tuple[Path, ...], texts: tuple[str, ...], no_run: bool, force: bool
) -> None:
    """Write one HTML page about a bundle and its proof.

    DIR is a bundle. The page has the proof as a picture (every length and padding, with the comparisons of a cell on
    click), the positions as the file computes them, the kernels that run them, findings of an audit, inputs and
    outputs, a few texts with their outputs, and commands. It is one HTML file that loads nothing else, for a browser,
    a phone or a printer. Needs no PyTorch.

    \b
    Example:
        posexport report minilm -o minilm.html
        posexport report minilm --bench bench.json --text "A cat sits." -o minilm.html
    """
    import posexport

    with bar("Reporting") as progress:
        posexport.report(directory, output, bench=bench, texts=texts, run=not no_run, force=force, progress=progress)
    click.echo(f"{output}")

"""posexport bench"""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from posexport.base.system.files import check_free, write_whole
from posexport.base.targets.precisions import PRECISIONS, PrecisionName
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.base.targets.target import target_names
from posexport.cli import complete, options
from posexport.cli.command import Command
from posexport.cli.terminal import bar
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.inspect.bench.measurement import Conditions
    from posexport.inspect.bench.records import Document


@click.command("bench", cls=Command)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete.sources)
@options.number_option("--length", "Tokens of a call that is timed (repeatable).", multiple=True)
@options.number_option("--batch", "Batch size (repeatable).", multiple=True)
@options.number_option("--past", "Tokens in a decoder's KV cache (repeatable).", least=0, multiple=True)
@options.number_option("--rounds", "Processes of each candidate.", default=3, show_default=True)
@click.option("--mixed", is_flag=True, help="Also: the memory held after 200 batches of mixed sizes (no cache).")
@click.option(
    "--compare",
    "compares",
    is_flag=True,
    help="One MODEL in every way that this machine has: the providers and precisions that are installed, and of a "
    "source PyTorch in float32 and bfloat16; says which to take.",
)
@options.number_option("--padding", "Percent of the tokens of a batch that are padding.", least=0, most=50, default=0)
@click.option("--spinning", is_flag=True, help="Let idle threads of ONNX Runtime spin, as is its default.")
@click.option("--target", type=click.Choice(target_names()), help="Target of converted models; default: portable.")
@click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    multiple=True,
    help="Precision of the models that are timed, a candidate for each (repeatable): MODEL is converted to it, or a "
    "bundle that has it.",
)
@options.set_option
@options.provider_option
@options.provider_options_option
@options.threads_option
@options.verbosity_options
@options.json_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the JSON document to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw a chart into this .png or .svg file.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(
    models: tuple[str, ...], output: Path | None, plot: Path | None, force: bool, as_json: bool, **choices: Any
) -> None:
    """Measure time and memory relative to a baseline model.

    Each figure is measured in a fresh process.

    MODEL is a bundle or what posexport convert takes, which is converted first, without a proof. The first is the
    baseline: calls of every other model are interleaved with its calls, and ratios are to them. A point at which two
    processes of the baseline differ by more than 5% is not valid. Candidates of the same weights must give the same
    answer: to 1e-3 in float32; in other precisions as far as these may differ, and the cosine is shown.

    \b
    Example:
        posexport bench encoder-nope encoder-rope --length 128 --length 512 --threads 2
        posexport bench path/to/bert --precision fp32 --precision int8 --target cpu
        posexport bench path/to/bert --compare --length 128 --batch 8
        posexport bench decoder-nope decoder-rope --past 512 --past 2048 -o decode.json --plot decode.svg
    """
    from posexport.inspect.bench.ways import advice

    request = _Request(**choices)
    _check(output, plot, force=force)
    if request.compares:
        _check_compared(models, request)
    document = _measured(models, request, output, force=force)
    if request.compares:
        document = replace(document, advice=[line for result in document.results for line in advice(result)])
    if output is not None:
        write_whole(output, document.to_json(), force=True)
    _show(document, plot, as_json=as_json, force=force)
    sys.exit(1 if document.failed else 0)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The options of the command about measurements."""

    length: tuple[int, ...]
    batch: tuple[int, ...]
    past: tuple[int, ...]
    mixed: bool
    compares: bool
    padding: int
    target: str | None
    precision: tuple[PrecisionName, ...]
    settings: tuple[str, ...]
    rounds: int
    spinning: bool
    provider: str
    provider_options: Mapping[str, Any]
    threads: int

    @property
    def conditions(self) -> "Conditions":
        from posexport.inspect.bench.measurement import Conditions

        return Conditions(
            rounds=self.rounds,
            threads=self.threads,
            provider=self.provider,
            provider_options=self.provider_options,
            spinning=self.spinning,
        )


def _measured(models: tuple[str, ...], request: _Request, output: Path | None, *, force: bool) -> "Document":
    from posexport.inspect.bench.candidate import candidates, points
    from posexport.inspect.bench.run import Run, held
    from posexport.inspect.bench.ways import compared
    from posexport.run.providers import check_loads, check_uncaptured

    check_uncaptured(request.provider, request.provider_options)
    check_loads(request.provider)
    options_of_convert = [part for setting in request.settings for part in ("--set", setting)]
    options_of_convert += ["--target", request.target] if request.target else []
    with bar("Measuring") as progress, tempfile.TemporaryDirectory() as folder:
        tell = progress or (lambda *_: None)
        tell(0, 1, "converting")
        if request.compares:
            measured, cached = compared(models[0], options_of_convert, request.settings, Path(folder))
        else:
            measured, cached = candidates(models, request.precision, options_of_convert, Path(folder))
        _check_cache(models[0], request, cached=cached)
        at = points(request.length, request.batch, request.past, cached=cached)
        run = Run("models", request.conditions, total=len(at), progress=tell)
        for number, point in enumerate(at):
            run.measure(", ".join(models), measured, replace(point, padding=request.padding / 100))
            if output is not None:  # an interrupted run leaves its results; the file is this run's by then
                write_whole(output, run.document().to_json(), force=force or number > 0)
        if request.mixed:
            run.mixed = held(measured, request.conditions, progress=tell)
    return run.document()


def _check_cache(model: str, request: _Request, *, cached: bool) -> None:
    """Refuse options that do not fit a model with a KV cache, or one without."""
    if request.past and not cached:
        raise PosexportError(f"--past is for decoders with a cache, {model} has none; leave it out")
    for name, given in (("mixed", request.mixed), ("padding", request.padding)):
        if given and cached:
            raise PosexportError(f"--{name} is for models without a cache, {model} has one; leave it out")


def _check_compared(models: tuple[str, ...], request: _Request) -> None:
    """Refuse options that say what --compare finds out."""
    if len(models) > 1:
        raise PosexportError(f"--compare measures one MODEL in several ways, got {' '.join(models)}; name one")
    given = {
        "--target": request.target,
        "--precision": request.precision,
        "--provider": request.provider != DEFAULT_PROVIDER,
        "--provider-option": request.provider_options,
        "--mixed": request.mixed,
    }
    if unfit := [name for name, value in given.items() if value]:
        raise PosexportError(f"--compare takes every provider and precision of this machine; leave {unfit[0]} out")


def _check(output: Path | None, plot: Path | None, *, force: bool) -> None:
    """Refuse what would be noticed only after hours."""
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise PosexportError(f"{plot} must end in .png or .svg; choose another name")
    for path in (output, plot):
        if path is not None:
            check_free(path, force=force)


def _show(document: "Document", plot: Path | None, *, as_json: bool, force: bool) -> None:
    if as_json:
        click.echo(document.to_json(), nl=False)
    else:
        from rich.console import Console

        from posexport.inspect.bench.tables import shown

        Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(shown(document))
    if plot is not None:
        from posexport.inspect.bench.tables import draw

        write_whole(plot, draw(document, plot.suffix), force=force)

"""posexport bench"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posexport.cli import complete, options
from posexport.cli.command import Command
from posexport.cli.progress import bar, remark
from posexport.errors import PosexportError
from posexport.targets.precisions import PRECISIONS
from posexport.targets.target import TARGETS

if TYPE_CHECKING:
    from posexport.bench.records import Document

_SUITES = ("paper", "decode", "quantized", "rivals", "lowerings", "attention", "growth")
_THIRD_PARTY = ("torch", "optimum", "transformers", "mobius", "genai")


@click.command("bench", cls=Command)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete.sources)
@click.option("--suite", type=click.Choice(_SUITES), help="A named set of models in place of MODEL.")
@click.option(
    "--length", "lengths", type=click.IntRange(min=1), metavar="N", multiple=True, help="Tokens of a call (repeatable)."
)
@click.option(
    "--batch", "batches", type=click.IntRange(min=1), metavar="N", multiple=True, help="Batch size (repeatable)."
)
@click.option(
    "--past",
    "pasts",
    type=click.IntRange(min=0),
    metavar="N",
    multiple=True,
    help="Tokens in the KV cache (repeatable).",
)
@click.option(
    "--rival",
    "third_party",
    type=click.Choice(_THIRD_PARTY),
    multiple=True,
    help="Only these third-party exporters (repeatable).",
)
@click.option("--only", multiple=True, metavar="TEXT", help="Only candidates with this in their name (repeatable).")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="Processes of each candidate.",
)
@click.option("--spinning", is_flag=True, help="Let idle threads of ONNX Runtime spin, as is its default.")
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Target of posexport's graphs; default: portable, in a suite the provider.",
)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(tuple(PRECISIONS)),
    multiple=True,
    help="Convert each MODEL to this precision, a candidate for each (repeatable); of a bundle, the one to use.",
)
@options.set_option
@options.provider_option
@options.threads_option
@options.verbosity_options
@options.json_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the JSON document to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw a chart into this .png or .svg file.")
@click.option("--resume", is_flag=True, help="Continue the file of -o: keep its valid results.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(
    models: tuple[str, ...],
    suite: str | None,
    lengths: tuple[int, ...],
    batches: tuple[int, ...],
    pasts: tuple[int, ...],
    third_party: tuple[str, ...],
    only: tuple[str, ...],
    target: str | None,
    precisions: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    resume: bool,
    force: bool,
    **choices: Any,
) -> None:
    """Measure time and peak memory, also of other exporters.

    Each figure is measured in a fresh process.

    MODEL is a bundle or what posexport convert takes. The first is the baseline: calls of every other candidate are
    interleaved with its calls, and ratios are to them. With --rival, checkpoints also go through third-party exporters,
    whose environments ci/rivals/setup makes. A point at which two processes of the baseline differ by more than 5% is
    not valid. Candidates of the same weights must give the same answer: to 1e-3 in float32; in other precisions as far
    as these may differ, and the cosine is shown. What is exported stays in .cache/bench, to be used again.

    \b
    Suites:
        paper   encoders of BERT-base's shape with 14 encodings, lengths 128, 512, 2048
        decode  a decode step of a Llama-like decoder with 512 and 2048 tokens in the KV cache, beside third-party
                exporters
        quantized  BERT-base in int8 and the same decoder in int8 and int4, beside ONNX Runtime's quantizer and
                onnxruntime-genai's int4
        rivals  BERT-base with three encodings and T5's encoder at 128 and 512, through third-party exporters
        lowerings  the planner's choice against each single lowering, lengths 32 to 4096
        attention  one layer of relative_key from 128 to 8192, beside its published form
        growth  the same layer from 256 to 16384: time and memory against length

    \b
    Example:
        posexport bench encoder-nope encoder-rope --length 128 --length 512 --threads 2
        posexport bench path/to/bert --precision fp32 --precision int8 --target cpu
        posexport bench --suite decode --threads 2 --rival genai -o decode.json
        posexport bench --suite growth --threads 2 -o growth.json --plot growth.svg
    """
    from posexport.bench.measure_suite import bench
    from posexport.bench.measurement import Conditions
    from posexport.bench.models import case, points
    from posexport.bench.resume import earlier
    from posexport.bench.suites import SUITES, chosen
    from posexport.files import write_whole
    from posexport.runtime.providers import check_loads

    force, conditions = force or resume, Conditions(**choices)
    _check(models, suite, output, plot, precisions, resume=resume, force=force)
    before = None
    if resume and output is not None:
        before = earlier(output, suite or "models", conditions)
    check_loads(conditions.provider)
    with bar("Measuring") as progress:
        if suite is None:
            pairs = [part for setting in settings for part in ("--set", setting)]
            pairs += ["--target", target] if target else []
            third = bool(third_party)
            asked = case(
                models,
                pairs,
                third_party=third,
                lengths=lengths,
                batches=batches,
                pasts=pasts,
                remark=remark,
                precisions=precisions,
            )
            cases = chosen([asked], third_party=third_party, only=only, points=[])
        else:
            at = points(lengths, batches, pasts, cached=suite == "decode") if lengths or batches or pasts else []
            cases = chosen(SUITES[suite](target or conditions.provider), third_party=third_party, only=only, points=at)
        if not cases:
            raise PosexportError("--only and --rival leave no candidate; give a part of a name that the suite has")
        written: list[Path] = []

        def keep(document: "Document") -> None:
            if output is not None:  # an interrupted run leaves its results; the file is this run's by then
                write_whole(output, document.to_json(), force=force or bool(written))
                written.append(output)

        document = bench(
            suite or "models", cases, conditions, progress=progress, remark=remark, keep=keep, before=before
        )
    _show(document, plot, as_json=as_json, force=force)
    # a third-party candidate that does not work is a result; one of posexport is a failure
    sys.exit(1 if document.failed else 0)


def _check(
    models: tuple[str, ...],
    suite: str | None,
    output: Path | None,
    plot: Path | None,
    precisions: tuple[str, ...],
    *,
    resume: bool,
    force: bool,
) -> None:
    """Refuse what would be noticed only after hours."""
    from posexport.files import check_free

    if bool(models) == bool(suite):
        raise PosexportError(f"give models to measure or a --suite, one of {', '.join(_SUITES)}")
    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise PosexportError(f"{plot} must end in .png or .svg; choose another name")
    if suite and precisions:
        raise PosexportError(f"--precision is for models of yours, --suite {suite} has candidates; leave one out")
    if resume and output is None:
        raise PosexportError("--resume needs the file to go on with; give -o FILE")
    for path in (output, plot):
        if path is not None:
            check_free(path, force=force)


def _show(document: "Document", plot: Path | None, *, as_json: bool, force: bool) -> None:
    if as_json:
        click.echo(document.to_json(), nl=False)
    else:
        from rich.console import Console

        from posexport.bench.ratio_table import shown

        Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(shown(document))
    if plot is not None:
        from posexport.bench.chart import draw
        from posexport.files import write_whole

        write_whole(plot, draw(document, plot.suffix), force=force)

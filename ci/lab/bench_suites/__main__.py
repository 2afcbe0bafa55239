"""``ci/lab/bench SUITE``: what docs/performance.md and docs/results/performance-tables.md show, measured. Suites:

\b
paper       encoders of BERT-base's shape with 14 encodings, lengths 128, 512, 2048
decode      a decode step of a Llama-like decoder with 512 and 2048 tokens in the KV cache, beside other exporters
quantized   BERT-base in int8 and the same decoder in int8 and int4, beside ONNX Runtime's quantizer and
            onnxruntime-genai's int4
states      a decode step and a prefill of Qwen3.5's kind and of Llama's, beside PyTorch, onnxruntime-genai and
            llama.cpp in float32 and 4 bits
ways        BERT-base on the CPU provider, on OpenVINO and in PyTorch: float32, bfloat16, int8; batches and padding
rivals      BERT-base with three encodings and T5's encoder at 128 and 512, through third-party exporters
lowerings   the planner's choice against each single lowering, lengths 32 to 4096
attention   one layer of relative_key from 128 to 8192, beside its published form
growth      the same layer from 256 to 16384: time and memory against length

The directory of a checkpoint in place of SUITE goes through posexport and every third-party exporter. What is exported
stays in .cache/bench, to be used again.
"""

import sys
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from rich.console import Console

from ci.lab.bench_suites import curves
from ci.lab.bench_suites.recipes import pinned
from ci.lab.bench_suites.suites import SUITES, Case, chosen, of_checkpoint
from posexport.base.system.files import check_free, write_whole
from posexport.base.system.machine import available
from posexport.base.targets.target import target_names
from posexport.inspect.bench.candidate import Candidate, points
from posexport.inspect.bench.measurement import Conditions
from posexport.inspect.bench.records import Clock, Document, Point, Result
from posexport.inspect.bench.run import Run, commit
from posexport.inspect.bench.tables import draw as draw_bars
from posexport.inspect.bench.tables import shown


@click.command(help=__doc__)
@click.argument("suite", metavar="SUITE|DIRECTORY")
@click.option("--length", "lengths", type=int, multiple=True, help="Only these lengths (repeatable).")
@click.option("--past", "pasts", type=int, multiple=True, help="Only these tokens in the KV cache (repeatable).")
@click.option("--rival", "third_party", multiple=True, help="Only these third-party exporters (repeatable).")
@click.option("--only", multiple=True, help="Only candidates with this in their name (repeatable).")
@click.option("--rounds", type=int, default=3, show_default=True, help="Processes of each candidate.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--provider", default="cpu", show_default=True)
@click.option(
    "--clock",
    type=click.Choice(get_args(Clock)),
    default="wall",
    show_default=True,
    help="cpu: times are processor time; with --threads 1 on a machine with other load.",
)
@click.option(
    "--target", type=click.Choice(target_names()), help="Target of posexport's graphs; default: the provider."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the JSON document to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw a chart into this .png or .svg file.")
@click.option("--resume", is_flag=True, help="Keep the valid results of -o that this commit made in the same way.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def main(
    suite: str,
    lengths: tuple[int, ...],
    pasts: tuple[int, ...],
    third_party: tuple[str, ...],
    only: tuple[str, ...],
    target: str | None,
    output: Path | None,
    plot: Path | None,
    resume: bool,
    force: bool,
    **choices: Any,
) -> None:
    conditions = Conditions(**choices)
    if suite not in SUITES and not Path(suite, "config.json").is_file():
        raise click.UsageError(f"{suite} is no directory with a config.json, and none of {', '.join(SUITES)}")
    for path in (output, plot):
        if path is not None:
            check_free(path, force=force or resume)
    made_for = target or conditions.provider
    cases = SUITES[suite](made_for) if suite in SUITES else [of_checkpoint(Path(suite), made_for)]
    at = points(lengths, (), pasts, cached=bool(cases[0].points[0].past)) if lengths or pasts else []
    cases = chosen(cases, third_party=third_party, only=only, points=at)
    if not cases:
        raise click.UsageError("--only and --rival leave no candidate; give a part of a name that the suite has")
    before = earlier(output, conditions) if resume and output is not None else []
    document = measure(suite if suite in SUITES else "models", cases, conditions, output, before)
    Console(highlight=False, width=140).print(shown(document))
    if plot is not None:
        draw = curves.draw if curves.is_curve(document.results) else draw_bars
        write_whole(plot, draw(document, plot.suffix), force=force or resume)
    # a third-party candidate that does not work is a result; one of posexport is a failure
    sys.exit(1 if document.failed else 0)


def measure(
    suite: str, cases: list[Case], conditions: Conditions, output: Path | None, before: list[Result]
) -> Document:
    """Everything that ``before`` does not have; ``output`` is written after every point."""
    environments = dict.fromkeys(name for case in cases for each in case.candidates for name in each.environments)
    versions = {f"{name}: {library}": v for name in environments for library, v in pinned(name).items()}
    run = Run(suite, conditions, total=sum(len(case.points) for case in cases), progress=_tell, versions=versions)
    for case in cases:
        candidates: list[Candidate] = []
        for point in case.points:
            known = next((result for result in before if _is_of(result, case, point)), None)
            if known is not None:
                run.results.append(known)
                continue
            candidates = candidates or [planned.made(click.echo) for planned in case.candidates]
            run.measure(case.model, candidates, point, case.budget, left_out=too_large(case, point, available()))
            if output is not None:
                write_whole(output, run.document().to_json(), force=True)
    if output is not None:  # what was known already may be the last
        write_whole(output, run.document().to_json(), force=True)
    return run.document()


def earlier(path: Path, conditions: Conditions) -> list[Result]:
    """Valid results in ``path`` that were measured at this commit, in the same way."""
    if not path.is_file():
        return []
    document = msgspec.json.decode(path.read_bytes(), type=Document)
    then = document.commit, document.threads, document.provider, document.rounds
    if then != (commit(), conditions.threads, conditions.provider, conditions.rounds):
        raise click.UsageError(f"{path} is of another commit or has other options; give --force without --resume")
    return [result for result in document.results if result.valid]


def _is_of(result: Result, case: Case, point: Point) -> bool:
    """Whether a result has all candidates of a case at a point."""
    found = [figure.candidate for figure in result.figures if figure.failed is None]
    return (result.model, result.point, found) == (case.model, point, [each.name for each in case.candidates])


def too_large(case: Case, point: Point, free: int) -> dict[str, str]:
    """Candidates for which, beside the baseline, the machine has too little memory, and why."""
    pairs, reasons = point.batch * point.new * (point.past + point.new), {}
    partner = pairs * case.candidates[0].pair_bytes
    for each in case.candidates:
        needed = pairs * each.pair_bytes
        if needed + (partner if partner <= free else 0) > free:
            beside = f" and the baseline {partner / 1e9:.1f} GB" if needed <= free else ""
            reasons[each.name] = f"it needs {needed / 1e9:.1f} GB{beside}, of {free / 1e9:.1f} GB free"
    return reasons


def _tell(done: int, total: int, what: str) -> None:
    click.echo(f"[{done}/{total}] {what}", err=True)


if __name__ == "__main__":
    main()

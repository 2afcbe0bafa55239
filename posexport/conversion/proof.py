"""The proof of exported graphs, and their agreement with float32 on a user's texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posexport.base.system.files import aside
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.conversion.export.build import Built
from posexport.conversion.options import ConvertOptions
from posexport.conversion.reduced import Reduced
from posexport.errors import PosexportError
from posexport.proof.report.report import Report
from posexport.run.bundle.manifest import PARITY, SAMPLE, TextAgreement, model_of
from posexport.run.bundle.variants import variant_file

if TYPE_CHECKING:
    from posexport.base.targets.precisions import PrecisionName
    from posexport.proof.proof import Progress
    from posexport.sources.source import Source


class OnTexts(NamedTuple):
    """Agreement on a user's texts; ``largest``: the largest magnitude in an emulated float16 graph, else None."""

    agreement: TextAgreement
    largest: float | None


def prove(
    source: "Source",
    directory: Path,
    options: ConvertOptions,
    progress: "Progress | None",
    variant: "PrecisionName | None" = None,
    reduced: Reduced | None = None,
) -> "Report":
    """The proof, with its records in ``directory``: every point, and the sample for machines without PyTorch."""
    from posexport.proof.choose import ProofOptions, prove_model
    from posexport.proof.sample.writer import SampleWriter

    sample = SampleWriter()
    proof_options = ProofOptions(
        provider=options.provider or DEFAULT_PROVIDER,
        precision=options.record.name,
        quantizer=options.quantizer,
        lengths=options.lengths,
        threads=options.threads,
        progress=progress or (lambda *_: None),
        sample=sample,
    )
    report = None
    if reduced is not None:
        from posexport.proof.full_model.records import NotComparableError, StructureError
        from posexport.proof.reduced.prove import prove_reduced

        try:
            report = prove_reduced(reduced.reduction, directory, proof_options, reduced.export)
        except (NotComparableError, StructureError) as err:
            (options.remark or (lambda _: None))(f"proven as a whole, without a reduced model: {err}")
    if report is None:
        report = prove_model(source, model_of(directory, source.parts), proof_options)
    (directory / variant_file(PARITY, variant)).write_bytes(report.to_json())
    if report.points and not sample.is_empty:
        sample.save(directory, variant_file(SAMPLE, variant))
    return report


def agreement_on_texts(
    source: "Source",
    directory: Path,
    float32: Path,
    texts: Path,
    options: ConvertOptions,
    progress: "Progress | None",
) -> OnTexts:
    """How the graph in ``directory`` agrees with that in ``float32`` on the user's texts."""
    from posexport.proof.agreement.texts import check_static, on_texts
    from posexport.proof.half_range import RangeLog
    from posexport.proof.subjects.half import computes, emulated_if, widened

    provider, computed = options.provider or DEFAULT_PROVIDER, options.computed
    parts = source.part_specs
    # a provider that computes in float32 would not show what others round
    emulated = None if computes(provider, computed) else computed
    log = RangeLog(options.threads) if emulated == "fp16" else None
    with emulated_if(emulated, model_of(directory, source.parts), parts) as graph:
        agreement = on_texts(
            widened(source),
            graph,
            model_of(float32, source.parts),
            texts,
            provider=provider,
            threads=options.threads,
            progress=progress,
            make=None if log is None else log.session,
        )
    if log is not None and log.overflows() and options.verify and not options.keep_failed:
        raise PosexportError(f"on {texts}: {log.overflows()[0].describe()}")
    if options.static and options.verify and not options.keep_failed:
        check_static(agreement, texts)
    return OnTexts(agreement, None if log is None else log.largest)


def explained(name: str, built: Sequence[Built], err: PosexportError) -> PosexportError:
    """``err`` with the user's line in place of ONNX Runtime's words, where a row of the refusals knows them."""
    sentence = next((text for graph in built if (text := graph.written.about(str(err)))), None)
    if sentence is None:
        return err
    path = aside("posexport-run-", str(err) + "\n")
    return PosexportError(
        f"{name}: {sentence}" + ("" if path is None else f"; all that ONNX Runtime says is in {path}")
    )


def reasons(built: Sequence[Built], report: Report) -> Iterator[str]:
    """Sentences on the lines that a missed proof may come from."""
    notes = dict.fromkeys(point.note for point in report.points if point.verdict == "fail" and point.note)
    said = (graph.written.about(note) for graph in built for note in notes)
    yield from dict.fromkeys(sentence for sentence in said if sentence is not None)
    for graph in built:
        yield from graph.written.reasons()

"""The proof of a large model in two parts: the grid on its reduced model, and the full model's file.

1. The reduced model is exported by the same steps with the same options, and gets the whole proof.
2. Every layer of the full graph is one of the reduced graph's, but for its weights; every stored weight is the source's
   (`posexport.parity.full_model`); and a few calls of the full model agree with the definition.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from posexport.bundle.manifest import ReducedProof, model_of
from posexport.parity.choose import ProofOptions, chosen, prove_model
from posexport.parity.engine import prove
from posexport.parity.percent import part
from posexport.parity.quantized.records import StoredError
from posexport.parity.reduced.calls import ChosenTokens, few
from posexport.parity.reduced.reduction import Reduction, parameters_of
from posexport.parity.report.report import Report
from posexport.parity.sample.check import FinishSample
from posexport.sources.source import Source

#: weights from which on a model is proven by its reduced model
LARGE = 16_000_000
#: exports the reduced model's graphs into a folder, with the options of the full model
Export = Callable[[Path], None]


def worth_it(reduction: Reduction) -> bool:
    """Whether a proof by the reduced model costs less than one of the full model."""
    return weights_of(reduction.full) >= LARGE and 2 * reduction.kept <= reduction.layers


def weights_of(source: Source) -> int:
    """How many elements the parameters have; tied ones count once."""
    return sum(parameter.numel() for parameter in source.module.parameters())


def prove_reduced(reduction: Reduction, directory: Path, options: ProofOptions, export: Export) -> Report:
    """The report on the graphs of a full model in ``directory``.

    Raises:
        PosexportError: as `prove_model`.
    """
    tell = options.progress
    tell(0, 100, f"exporting the reduced model, {reduction.kept} of {reduction.layers} layers")
    with tempfile.TemporaryDirectory(prefix="posexport-reduced-") as name:
        folder = Path(name)
        export(folder)
        grid = prove_model(reduction.source, model_of(folder, reduction.source.parts), replace(options, sample=None, progress=part(tell, 5, 60)))
        if not grid.passed:
            return msgspec.structs.replace(grid, reduced=_record(reduction, 0))
        try:
            tell(60, 100, "comparing the full model's layers and weights")
            weights = _compare_files(reduction, directory, folder)
        except StoredError as err:
            return msgspec.structs.replace(grid, reduced=_record(reduction, 0), findings=[str(err)])
    calls = _calls(reduction.full, directory, replace(options, progress=part(tell, 75, 100)))
    return msgspec.structs.replace(
        grid,
        reduced=_record(reduction, weights),
        calls=calls.points,
        invariants=[*grid.invariants, *calls.invariants],
        findings=[*grid.findings, *calls.findings],
    )


def _record(reduction: Reduction, weights: int) -> ReducedProof:
    words = None if reduction.words is None else reduction.words[1]
    return ReducedProof(layers=reduction.layers, kept=reduction.kept, words=words, weights=weights)


def _compare_files(reduction: Reduction, directory: Path, folder: Path) -> int:
    """Compare each graph with the reduced model's; how many stored weights were compared."""
    from posexport.parity.full_model.check import check

    return sum(
        check(directory / file, folder / file, reduction.stacks, parameters_of(reduction.full.module))
        for file in reduction.full.graphs
    )


def _calls(source: Source, directory: Path, options: ProofOptions) -> Report:
    """The report on a few calls of the full model."""
    chosen_points = replace(options, some=lambda points: few(points, weights_of(source)))
    with chosen(source, model_of(directory, source.parts), chosen_points) as proof:
        checks = [*proof.checks, ChosenTokens(proof.reference, proof.subject)]
        checks += [] if options.sample is None else [FinishSample(options.sample)]
        return prove(replace(proof, checks=checks))

"""The proof of a large model in two parts: the grid on its reduced model, and the full model's file.

1. The reduced model is exported by the same steps with the same options, and gets the whole proof.
2. Every layer of the full graph is one of the reduced graph's, but for its weights; every stored weight is the source's
   (`posexport.proof.full_model`); and a few calls of the full model agree with the definition.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from posexport.base.system.freed_memory import trim
from posexport.base.targets.precisions import PRECISIONS
from posexport.proof.agreement.on_grid import CostOnGrid
from posexport.proof.choose import ProofOptions, about, proof_of, prove_model
from posexport.proof.engine import prove
from posexport.proof.full_model.check import Layers, check
from posexport.proof.full_model.records import StructureError
from posexport.proof.grid.inputs import is_fixed
from posexport.proof.invariants.check import Invariants
from posexport.proof.percent import part
from posexport.proof.quantized.records import StoredError
from posexport.proof.reduced.calls import ChosenTokens, few
from posexport.proof.reduced.reduction import Reduction, parameters_of, weights_of
from posexport.proof.references.definition import DefinitionReference
from posexport.proof.report.report import Report
from posexport.proof.sample.check import FinishSample
from posexport.proof.subjects.half import widened
from posexport.proof.subjects.runner import Runner
from posexport.run.bundle.manifest import ReducedProof, model_of
from posexport.sources.source import Source

#: exports the reduced model's graphs into a folder, with the options of the full model
Export = Callable[[Path], object]


def prove_reduced(reduction: Reduction, directory: Path, options: ProofOptions, export: Export) -> Report:
    """The report on the graphs of a full model in ``directory``.

    Raises:
        NotComparableError: the full model's graph is no chain of layers, right or wrong.
        StructureError: a layer differs from the reduced model's: a proof of the full model decides.
        PosexportError: as `prove_model`.
    """
    tell = options.progress
    tell(0, 100, f"exporting the reduced model, {reduction.kept} of {reduction.layers} layers")
    with tempfile.TemporaryDirectory(prefix="posexport-reduced-") as name:
        folder = Path(name)
        export(folder)
        tell(3, 100, "comparing the full model's layers and weights")
        try:
            compared = _compare_files(reduction, directory, folder, options)
        except StructureError:
            raise
        except StoredError as err:  # a wrong weight: no point needs to run
            return msgspec.structs.replace(about(options), reduced=_record(reduction, 0), findings=[str(err)])
        weights = sum(layers.weights for layers in compared.values())
        grid_options = replace(options, sample=None, agreement=False, progress=part(tell, 20, 75))
        grid = prove_model(reduction.source, model_of(folder, reduction.source.parts), grid_options)
        if not grid.passed:
            return msgspec.structs.replace(grid, reduced=_record(reduction, weights))
    matches = {file: layers.matches for file, layers in compared.items()}
    of_calls = replace(options, progress=part(tell, 75, 100), matches=matches)
    trim()  # of the grid, before the full model's session
    calls = _calls(reduction.full, directory, of_calls)
    return msgspec.structs.replace(
        grid,
        reduced=_record(reduction, weights),
        calls=calls.points,
        agreement=calls.agreement,
        invariants=[*grid.invariants, *calls.invariants],
        findings=[*grid.findings, *calls.findings],
    )


def _record(reduction: Reduction, weights: int) -> ReducedProof:
    words = None if reduction.words is None else reduction.words.reduced
    return ReducedProof(layers=reduction.layers, kept=reduction.kept, words=words, weights=weights)


def _compare_files(reduction: Reduction, directory: Path, folder: Path, options: ProofOptions) -> dict[str, Layers]:
    """Compare each graph with the reduced model's."""
    full, reduced = reduction.full, reduction.source
    parameters, of_reduced = (parameters_of(each.module, reduction.stacks) for each in (full, reduced))
    return {
        file: check(
            directory / file,
            folder / file,
            reduction.stacks,
            parameters,
            of_reduced,
            graphs=[parameters_of(each.module) for each in (graph, reduced.graphs[file])],
            inputs=graph.inputs,
            words=reduction.words,
            quantizer=options.quantizer,
        )
        for file, graph in full.graphs.items()
    }


def _calls(source: Source, directory: Path, options: ProofOptions) -> Report:
    """The report on a few calls of the full model."""
    fixed = any(map(is_fixed, source.inputs))
    chosen_points = replace(options, some=lambda points: few(points, weights_of(source), fixed=fixed))
    with proof_of(source, model_of(directory, source.parts), chosen_points) as proof:
        checks = list(proof.checks)
        if isinstance(proof.reference, DefinitionReference) and isinstance(proof.subject, Runner):
            checks.append(Invariants(proof.reference, of_texts_alone=True))
            checks.append(ChosenTokens(proof.reference, proof.subject))
            checks += [CostOnGrid(widened(source))] if PRECISIONS[options.precision].quantized else []
        checks += [] if options.sample is None else [FinishSample(options.sample)]
        return prove(replace(proof, checks=checks))

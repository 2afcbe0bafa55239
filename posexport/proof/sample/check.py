"""Checks a bundle by its stored sample: the reference, the proof, and where an error starts. Imports no torch.

Where an emulated copy was proven, the graph that ships is compared with it as well.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from posexport.base.bounds import Bound
from posexport.base.spec import SEQUENCE, OutputSpec, PartSpec, compared_outputs
from posexport.base.targets.precisions import PRECISIONS
from posexport.base.targets.providers import DEFAULT_PROVIDER, provider_named
from posexport.errors import PosexportError
from posexport.proof.criterion import Array, Measured, counted, is_exact, of_zeros
from posexport.proof.engine import judgements, measure, prove
from posexport.proof.grid.point import Budget, GridPoint
from posexport.proof.judges import Guarded, StoredTolerances, UserTolerance
from posexport.proof.placement import Placement
from posexport.proof.proof import Case, Check, Outcome, PerLength, Progress, Proof, Subject, Value
from posexport.proof.report.report import Report
from posexport.proof.sample.locate import SampleLocation
from posexport.proof.sample.writer import Header, SampleWriter, flat, read
from posexport.proof.subjects.half import emulated_if, loads, widened_parts
from posexport.proof.subjects.runner import Opened, Runner
from posexport.run.bundle.manifest import SAMPLE, Manifest, model_of
from posexport.run.bundle.read import read as read_manifest
from posexport.run.bundle.variants import variant_file
from posexport.run.chain import Chain

#: PyTorch's error is stored for a length, not for a point
_NOT_STORED = Measured(float("nan"), 0.0)


@dataclass(frozen=True)
class Stored:
    """Stored entries of one output at one point: ``values_NC`` [rows, columns] of the output flattened to [N, C]."""

    spec: OutputSpec
    scale: float
    rows: Array
    columns: Array
    values_NC: Array
    baseline: Measured = _NOT_STORED

    @property
    def output(self) -> str:
        return self.spec.name

    def measure(self, y: Array) -> Measured:
        """The error of the stored entries."""
        flat_NC, _ = flat(y, self.spec.axes, None)
        if not self.rows.size or self.rows.max() >= flat_NC.shape[0] or self.columns.max() >= flat_NC.shape[1]:
            return Measured(np.inf, 0.0, f"shape {list(y.shape)} does not hold the sampled entries")
        if is_exact(y):
            stored_alike = flat_NC[np.ix_(self.rows, self.columns)].astype(self.values_NC.dtype)
            return Measured(float((stored_alike != self.values_NC).mean()), 1.0)
        given, right = counted(flat_NC[np.ix_(self.rows, self.columns)].astype(np.float64), self.values_NC)
        gap = float(np.abs(given - right).max(initial=0.0))
        if not np.isfinite(gap):
            return Measured(np.inf, 0.0, "a number that is not finite")
        if self.scale == 0.0:
            return of_zeros(gap)
        return Measured(gap / self.scale, self.scale)


class StoredReference:
    """The reference read from a file of `posexport.proof.sample.writer`: ``header``, and ``tensors`` by name."""

    def __init__(self, header: Header, tensors: Mapping[str, Array]) -> None:
        self._header, self._tensors = header, tensors

    @property
    def tolerances(self) -> dict[tuple[int, str], float]:
        """The tolerances of the proof at conversion, by length and output."""
        return {key: limit for key, (_, limit) in self._of_lengths().items() if limit is not None}

    def start(self, points: Sequence[GridPoint], skipped: Mapping[GridPoint, str]) -> None:
        """Nothing is computed."""

    def case(self, point: GridPoint) -> Case:
        """Inputs and stored float64 outputs of a point."""
        header, tensors, number = self._header, self._tensors, self._header.points.index(point)
        feeds = {spec.name: tensors[f"{number}.in.{spec.name}"].astype(spec.dtype) for spec in header.inputs}
        truths = []
        for spec, known in zip(compared_outputs(header), header.truths[number], strict=True):
            rows, columns, values = (
                tensors[f"{number}.out.{spec.name}.{suffix}"] for suffix in ("rows", "columns", "values")
            )
            truths.append(Stored(spec, known.scale, rows, columns, values))
        return Case(feeds, truths)

    def largest(self, values: Sequence[Value], progress: Progress, *, thorough: bool = False) -> PerLength:
        """As it was stored; not a number where PyTorch overflowed."""
        del values, progress
        return {key: float("nan") if worst is None else worst for key, (worst, _) in self._of_lengths().items()}

    def changed(self) -> bool:
        return False

    def renew(self) -> None:
        """Does nothing: there is no state."""

    def _of_lengths(self) -> dict[tuple[int, str], tuple[float | None, float | None]]:
        """PyTorch's largest error and the tolerance."""
        header = self._header
        return {
            (point.length, spec.name): (known.worst_baseline_error, known.tolerance)
            for point, truths in zip(header.points, header.truths, strict=True)
            for spec, known in zip(compared_outputs(header), truths, strict=True)
        }


def sample_proof(
    header: Header,
    tensors: Mapping[str, Array],
    subject: Subject,
    *,
    provider: str,
    tolerance: float | None = None,
    emulated: bool = False,
) -> Proof:
    """The proof of ``subject`` at the points of a sample; ``tolerance``: the user's, instead of the stored ones."""
    reference = StoredReference(header, tensors)
    computed = PRECISIONS[header.precision].computed
    return Proof(
        model=header,
        subject=subject,
        reference=reference,
        judge=StoredTolerances(computed, reference.tolerances)
        if tolerance is None
        else UserTolerance(computed, tolerance),
        rejection=Guarded(header, [Bound(SEQUENCE, header.limit or 0)]),
        points=[*header.points, *header.refusals],
        # they were run before, and are small
        budget=Budget(outputs=header.outputs, limit=sys.maxsize),
        about=Report(
            scope="sample",
            provider=provider,
            precision=header.precision,
            points=[],
            tolerance=tolerance,
            emulated=emulated,
        ),
    )


@dataclass(frozen=True)
class FinishSample:
    """The check that gives the sample the tolerances of the finished report."""

    sample: SampleWriter

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` unchanged."""
        del proof, outcome
        self.sample.finish(report)
        return report


@dataclass(frozen=True)
class Shipped:
    """The check of the graph that ships, where an emulated copy was proven: at the points of the sample.

    A provider that computes in float32 what it has no half kernel for must be as exact as the emulated copy.
    ``subject`` opens the graph.
    """

    sample: SampleWriter
    subject: Callable[[], Subject]

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` with the results of the graph itself."""
        del proof, outcome
        header = self.sample.header
        if header is None or not header.points:
            return report
        stored = sample_proof(header, self.sample.tensors, self.subject(), provider=report.provider)
        return msgspec.structs.replace(report, shipped=judgements(stored, measure(stored)))


def check_sample(
    directory: Path,
    *,
    parts: Sequence[PartSpec] = (),
    file: str = SAMPLE,
    provider: str = DEFAULT_PROVIDER,
    provider_options: Mapping[str, Any] | None = None,
    threads: int = 0,
    tolerance: float | None = None,
    emulate: bool = False,
) -> Report:
    """Run a bundle's model, or its ``parts``, on its stored sample. Needs NumPy and ONNX Runtime only.

    If an output is wrong, the report names the first wrong node (`posexport.proof.sample.locate`); nodes that ran on
    another provider than ``provider`` are findings.

    ``tolerance``: the largest error that passes, instead of the stored tolerances.
    ``emulate``: run a copy that computes in float32 and rounds; always so if the provider has no arithmetic of the
    bundle's precision (`posexport.graph.precision.emulate`, which needs onnx_ir).

    Raises PosexportError where the sample is missing or damaged, or the provider does not load.
    """
    header, tensors = read(directory / file)
    record = provider_named(provider)
    by_session = record.precision(provider_options)
    if by_session is not None and tolerance is None and by_session != PRECISIONS[header.precision].computed:
        raise PosexportError(
            f"precision={by_session} of {record.label} needs --against SOURCE or --tolerance: the stored sample has "
            f"tolerances of {header.precision}"
        )
    model, computed = model_of(directory, parts), PRECISIONS[header.precision].computed
    emulated = emulate or not loads(provider, computed)
    with emulated_if(computed if emulated else None, model, parts) as graph:
        runner = Runner.of(
            header,
            graph,
            widened_parts(parts) if emulated else parts,
            provider=provider,
            threads=threads,
            provider_options=provider_options,
        )
        proof = sample_proof(header, tensors, runner, provider=provider, tolerance=tolerance, emulated=emulated)
        if emulated:
            return prove(proof)
        options = {"threads": threads, "provider_options": provider_options}
        checks: list[Check] = [SampleLocation(model, tuple(parts), options)]
        if not record.built_in:
            checks.append(Placement(runner, model, tuple(parts)))
        return prove(replace(proof, checks=checks))


class SelfCheck(Report, frozen=True, kw_only=True):
    """The report of a session's `self_check` on the stored sample; true if all outputs are right."""

    def __bool__(self) -> bool:
        """Whether all outputs are within tolerance."""
        return self.passed

    def __str__(self) -> str:
        """The table of points, and the reasons for failures."""
        return self.to_text()


def self_check(directory: Path, manifest: Manifest, chain: Chain, provider: str) -> SelfCheck:
    """Compare the bundle in ``directory``, opened as ``chain`` on ``provider``, with its stored sample.

    Raises PosexportError where the sample is missing or damaged.
    """
    first = read_manifest(directory).precision
    header, tensors = read(
        directory / variant_file(SAMPLE, None if manifest.precision == first else manifest.precision)
    )
    proof = sample_proof(
        header, tensors, Opened(chain, [spec.name for spec in header.outputs], provider), provider=provider
    )
    model = model_of(directory, manifest.parts)
    report = prove(replace(proof, checks=[SampleLocation(model, tuple(manifest.parts))]))
    return msgspec.convert(report, SelfCheck, from_attributes=True)

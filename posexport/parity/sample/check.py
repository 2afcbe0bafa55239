"""A bundle's stored sample, checked. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from posexport.bundle.manifest import SAMPLE, Manifest, model_of
from posexport.bundle.read import read as read_manifest
from posexport.bundle.variants import variant_file
from posexport.parity.engine import prove
from posexport.parity.placement import Placement
from posexport.parity.proof import Check
from posexport.parity.report.report import Report
from posexport.parity.sample.header import read
from posexport.parity.sample.locate import SampleLocation
from posexport.parity.sample.proof import sample_proof
from posexport.parity.subjects.half import emulated_if, loads, widened_parts
from posexport.parity.subjects.runner import Opened, Runner
from posexport.runtime.chain import Chain
from posexport.spec import PartSpec
from posexport.targets.precisions import PRECISIONS
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named


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

    If an output is wrong, the report names the first wrong node (`posexport.parity.sample.locate`); nodes that ran on
    another provider than ``provider`` are findings.

    ``tolerance``: the largest error that passes, instead of the stored tolerances.
    ``emulate``: run a copy that computes in float32 and rounds; always so if the provider has no arithmetic of the
    bundle's precision (`posexport.precision.emulate`, which needs onnx_ir).

    Raises PosexportError where the sample is missing or damaged, or the provider does not load.
    """
    header, tensors = read(directory / file)
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
        if not provider_named(provider).built_in:
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
    proof = sample_proof(header, tensors, Opened(chain, [spec.name for spec in header.outputs]), provider=provider)
    model = model_of(directory, manifest.parts)
    report = prove(replace(proof, checks=[SampleLocation(model, tuple(manifest.parts))]))
    return msgspec.convert(report, SelfCheck, from_attributes=True)

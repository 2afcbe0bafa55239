"""The proof of a graph in half precision where the provider has no arithmetic of it. Imports no torch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from posexport.parity.report.points import Point
from posexport.parity.report.report import Report
from posexport.parity.run.emulation import loads
from posexport.parity.run.sample import SampleWriter, run_sample
from posexport.spec import PartSpec
from posexport.targets.dtypes import BY_PRECISION
from posexport.targets.precisions import PrecisionName


def prove(
    proof: Callable[..., Report],
    model: Path | bytes,
    parts: Sequence[PartSpec],
    *,
    provider: str,
    precision: PrecisionName,
    threads: int,
    sample: SampleWriter | None,
) -> Report:
    """``proof`` of an emulated copy of ``model``, and what ``model`` gives at the points of the stored sample.

    A provider that computes in float32 what it has no half kernel for must be as exact as the emulated copy; one that
    does not load the graph shows nothing of it.
    """
    from posexport.precision.emulate import emulated

    sample = sample or SampleWriter()
    with emulated(model, BY_PRECISION[precision], parts) as copy:
        report = proof(copy, emulated=True, sample=sample)
    shipped: list[Point] = []
    if sample.header is not None and sample.header.points and loads(provider, precision):
        shipped = run_sample(sample.header, sample.tensors, model, parts=parts, provider=provider, threads=threads)
    return msgspec.structs.replace(report, shipped=shipped)

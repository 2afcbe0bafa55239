"""Which graph a proof runs: the one that ships, or where the provider does not compute in its type an emulated copy.

What ships runs too, at the points of the stored sample, wherever the provider loads it. Imports no torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from posexport.errors import PosexportError
from posexport.parity.report.points import Point
from posexport.parity.report.report import Report
from posexport.parity.run.sample import SampleWriter, check_tensors
from posexport.spec import PartSpec
from posexport.targets.dtypes import BY_PRECISION, MODEL_DTYPE
from posexport.targets.precisions import PrecisionName
from posexport.targets.providers import CPU, DEFAULT_PROVIDER, provider_named

#: the precisions of half
HALVES = tuple(name for name in BY_PRECISION if name != MODEL_DTYPE.precision)


def is_emulated(provider: str, precision: PrecisionName) -> bool:
    """Whether a proof on ``provider`` runs an emulated copy of a graph of ``precision``."""
    return precision in HALVES and not provider_named(provider).computes(BY_PRECISION[precision])


@contextmanager
def runnable(
    model: Path | bytes, parts: Sequence[PartSpec], precision: PrecisionName, provider: str = DEFAULT_PROVIDER
) -> Iterator[Path | bytes]:
    """``model`` where ``provider`` loads graphs of ``precision``, else an emulated copy as long as the block lasts."""
    if precision not in HALVES or provider_named(provider).loads(BY_PRECISION[precision]):
        yield model
        return
    from posexport.precision.emulate import emulated

    with emulated(model, BY_PRECISION[precision], parts) as copy:
        yield copy


def with_shipped(
    report: Report, sample: SampleWriter, model: Path | bytes, parts: Sequence[PartSpec], *, threads: int
) -> Report:
    """The report of an emulated copy with what ``model``, which ships, gives at the points of the sample.

    A provider that computes in float32 what it has no kernel for must be at least as exact as the emulated copy.
    """
    if not provider_named(report.provider).loads(BY_PRECISION[report.precision]):
        return report
    points: list[Point] = []
    if sample.header is not None:
        points = check_tensors(
            sample.header, sample.tensors, model, parts=parts, provider=report.provider, threads=threads
        )
    return msgspec.structs.replace(report, shipped=points)


def check_emulate(target: Path, stored: PrecisionName, asked: PrecisionName) -> bool:
    """Whether all of a float32 graph is rounded (True) or what a graph of half precision has in it (False).

    PosexportError where ``asked`` is none of the halves, or the graph is in another precision.
    """
    if asked not in HALVES:
        raise PosexportError(f"--emulate must be {' or '.join(HALVES)}, got {asked}")
    if stored == MODEL_DTYPE.precision:
        return True
    if stored != asked:
        raise PosexportError(
            f"{target} is in {stored}, --emulate {asked} needs a graph in {asked} or {MODEL_DTYPE.precision}; give "
            f"--emulate {stored}" if stored in HALVES else f"{target} is in {stored}, which is not emulated: leave "
            f"--emulate out, {CPU.label} computes it"
        )
    return False

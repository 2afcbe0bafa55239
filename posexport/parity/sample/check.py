"""A bundle's stored sample, checked. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posexport.bundle.manifest import SAMPLE, model_of
from posexport.parity.engine import prove
from posexport.parity.report.report import Report
from posexport.parity.sample.header import read
from posexport.parity.sample.proof import sample_proof
from posexport.parity.subjects.half import emulated_if, loads, widened_parts
from posexport.parity.subjects.runner import Runner
from posexport.spec import PartSpec
from posexport.targets.precisions import PRECISIONS
from posexport.targets.providers import DEFAULT_PROVIDER


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

    ``tolerance``: the largest error that passes, in place of what the sample says.
    ``emulate``: a copy runs that computes in float32 and rounds, as it does where the provider has no arithmetic of the
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
        return prove(sample_proof(header, tensors, runner, provider=provider, tolerance=tolerance, emulated=emulated))

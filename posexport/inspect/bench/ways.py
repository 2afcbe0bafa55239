"""The ways to compute one model on this machine, as candidates of one benchmark: providers, precisions, PyTorch.

The first is the baseline, from which errors are measured: PyTorch in float32, or for a bundle, which has no PyTorch
model, its float32 graph on the CPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posexport.base.system.extras import is_installed
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.precisions import FP32, PrecisionName
from posexport.base.targets.provider_options import COMPUTES
from posexport.base.targets.providers import CPU, PROVIDERS, Provider, targets
from posexport.base.targets.target import PORTABLE
from posexport.errors import PosexportError
from posexport.inspect.bench.candidate import Candidate, candidates
from posexport.inspect.bench.records import Figure, Result
from posexport.run.bundle.manifest import MANIFEST
from posexport.run.bundle.read import read
from posexport.run.providers import check_loads

#: an error relative to the largest value up to which a way counts as float32
FLOAT32_ERROR = 1e-4
#: that ONNX Runtime's CPU provider computes, beside float32
_ON_CPU: tuple[PrecisionName, ...] = ("int8", "int4")
_HALF: PrecisionName = "bf16"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way: a provider with its session's options, and the precision of the file."""

    provider: Provider
    precision: PrecisionName = FP32.name
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.provider.name} {self.options.get(COMPUTES, self.precision)}"

    @property
    def target(self) -> str:
        """The target that graphs are converted for."""
        return self.provider.name if self.provider.name in targets() else PORTABLE


def ways() -> list[Way]:
    """The ways of ONNX Runtime's providers that load on this machine."""
    available: list[Way] = []
    for provider in PROVIDERS.values():
        try:
            check_loads(provider.name)
        except PosexportError:
            continue
        available.append(Way(provider=provider))
        if provider is CPU:
            available += [Way(provider=provider, precision=name) for name in _ON_CPU]
        if COMPUTES in provider.choices:
            available.append(Way(provider=provider, options={COMPUTES: _HALF}))
        available += [
            Way(provider=provider, precision=name)
            for name, dtype in BY_PRECISION.items()
            if name != FP32.name and provider.computes(dtype)
        ]
    return available


def compared(model: str, options: Sequence[str], settings: Sequence[str], folder: Path) -> tuple[list[Candidate], bool]:
    """Candidates for every way to compute ``model``, and whether it has a KV cache.

    A source is converted into ``folder`` for each way, with the ``options`` of ``posexport convert``; a bundle is
    measured on the providers that run it, in its precisions.

    Raises:
        PosexportError: the source cannot be converted, or no way is left.
    """
    measured, cached = (
        _of_bundle(Path(model)) if (Path(model) / MANIFEST).is_file() else _of_source(model, options, folder)
    )
    graph = next(iter(measured), None)
    if graph is None:
        raise PosexportError(f"no provider on this machine runs {model}; convert it again with --target portable")
    torch = [] if (Path(model) / MANIFEST).is_file() else list(_pytorch(model, settings, graph))
    return [replace(candidate, weights=model) for candidate in (*torch, *measured)], cached


def _of_bundle(bundle: Path) -> tuple[list[Candidate], bool]:
    manifest = read(bundle)
    there = (manifest.precision, *manifest.variants)
    fitting = [way for way in ways() if way.precision in there and manifest.target in (PORTABLE, way.provider.name)]
    # a graph for another target has no form for sessions of lower precision
    fitting = [way for way in fitting if not way.options or manifest.target == way.provider.name]
    measured = [_candidate(str(bundle), way, (), Path()) for way in fitting]
    return [candidate for candidate, _ in measured], manifest.limits.kv_cache


def _of_source(model: str, options: Sequence[str], folder: Path) -> tuple[list[Candidate], bool]:
    bundles: dict[tuple[str, str], Path] = {}
    measured = []
    for way in ways():
        key = (way.target, way.precision)
        if key not in bundles:
            bundles[key] = folder / "-".join(key)
            candidates([model], [way.precision], (*options, "--target", way.target), bundles[key])
        measured.append(_candidate(str(bundles[key] / "0"), way, options, folder))
    return [candidate for candidate, _ in measured], measured[0][1]


def _candidate(bundle: str, way: Way, options: Sequence[str], folder: Path) -> tuple[Candidate, bool]:
    (candidate,), cached = candidates([bundle], [way.precision], options, folder)
    precision = way.options.get(COMPUTES, way.precision)
    same = {"name": way.name, "precision": precision, "provider": way.provider.name, "provider_options": way.options}
    return replace(candidate, **same), cached


def _pytorch(model: str, settings: Sequence[str], like: Candidate) -> Iterator[Candidate]:
    """PyTorch in float32 and bfloat16: a checkpoint by transformers' class if it is installed, else by the source."""
    by_class = (Path(model) / "config.json").is_file() and is_installed("transformers")
    worker = f"posexport.inspect.bench.workers.{'transformers' if by_class else 'definition'}"
    for precision in (FP32.name, _HALF):
        yield replace(
            like,
            name=f"PyTorch {precision}",
            model=model,
            worker=worker,
            by_posexport=False,
            precision=precision,
            provider=None,
            provider_options={},
            options={"dtype": BY_PRECISION[precision].name, "settings": list(settings)},
            export=None,
            nodes=None,
            reads=None,
        )


def advice(result: Result) -> list[str]:
    """Which way to take at a point: the fastest of float32's error, and a faster one with its error."""
    usable = [figure for figure in result.figures if figure.ms is not None and not figure.wrong]
    exact = [figure for figure in usable if (figure.difference or 0) <= FLOAT32_ERROR]
    if not exact:
        return []
    best, fastest = (min(group, key=lambda figure: figure.ms or 0.0) for group in (exact, usable))
    lines = [f"{result.point.text}: take {best.candidate} for float32's error, {_cost(best)}"]
    if fastest is not best:
        times = (best.ms or 0.0) / (fastest.ms or 1.0)
        lines.append(
            f"{result.point.text}: {fastest.candidate} is {times:.2g} times as fast, {_cost(fastest)}, where an error "
            f"of {fastest.difference:.0e} of the largest value is accepted"
        )
    return lines


def _cost(figure: Figure) -> str:
    memory = "" if figure.peak is None else f" and {figure.peak / 1e6:.0f} MB"
    return f"{figure.ms:.3g} ms{memory}"

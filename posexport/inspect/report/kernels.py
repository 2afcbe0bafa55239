"""How attention and positions are computed: lowerings, kernels on this machine, kernels of other providers.

Imports no torch.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from posexport.base.targets.providers import DEFAULT_PROVIDER, PROVIDERS, Provider
from posexport.errors import PosexportError
from posexport.inspect.explain.records import SHARES, CostRow, Explanation, GraphCost
from posexport.run.bundle.manifest import Manifest

#: kernels and origins that are named
_NAMED, _ROWS = 4, 8


@dataclass(frozen=True)
class Placement:
    """Kernels and proof of a bundle on a provider. ``state``: ``proven``, ``emulated``, or empty."""

    label: str
    state: str
    words: str
    missing: list[str]


@dataclass(frozen=True)
class Share:
    """A part of the time of a call, in percent."""

    name: str
    percent: float


@dataclass(frozen=True)
class Time:
    """The time of a call of one graph by purpose: shares, and the longest rows."""

    file: str
    ms: str
    shares: list[Share]
    rows: list[tuple[str, str, str, str]]


def times(explanation: Explanation) -> list[Time]:
    """Shares of time by purpose, and the longest origins, of every profiled graph."""
    return [_time(graph, PROVIDERS[explanation.provider]) for graph in explanation.parts]


def _time(graph: GraphCost, provider: Provider) -> Time:
    total = graph.kernels_ms or 1.0
    rows = sorted(graph.rows, key=lambda cost: -cost.ms)[:_ROWS]
    return Time(
        file=graph.file,
        ms=f"{graph.ms:.3g}",
        shares=[Share(share, 100 * graph.fraction(share)) for share in SHARES],
        rows=[(cost.share, cost.name, f"{100 * cost.ms / total:.1f}%", _kernels(cost, provider)) for cost in rows],
    )


def _kernels(cost: CostRow, provider: Provider) -> str:
    words = [
        f"{kernel.count} {kernel.op_type}"
        + ("" if kernel.provider == provider.ort_name else f" on {kernel.provider.removesuffix('ExecutionProvider')}")
        for kernel in cost.kernels[:_NAMED]
    ]
    more = sum(kernel.count for kernel in cost.kernels[_NAMED:])
    return ", ".join([*words, *([f"{more} others"] if more else [])])


def placements(directory: Path, manifest: Manifest) -> list[Placement]:
    """Every provider: whether the bundle is proven there, and which nodes have kernels by the kernel table."""
    return [_placement(directory, manifest, PROVIDERS[name]) for name in PROVIDERS.names]


def _placement(directory: Path, manifest: Manifest, provider: Provider) -> Placement:
    state = "proven" if manifest.proven and provider.name in manifest.proven_on else ""
    state = state or ("emulated" if manifest.proven_in_emulation and provider.name == manifest.target else "")
    if provider.name == DEFAULT_PROVIDER:
        return Placement(provider.label, state, "every build of ONNX Runtime has it", [])
    if provider.types:
        return Placement(provider.label, state, "no kernel table: posexport explain tells on a machine that has it", [])
    from posexport.inspect.explain.eligibility import eligibility

    try:
        table = eligibility(directory, provider.name, "it was not asked for")
    except PosexportError as err:
        return Placement(provider.label, state, str(err), [])
    without = [node for node in table.nodes if not node.kernel]
    attention = Counter(node.reason for node in table.nodes if "attention" in node.reason)
    words = f"kernels for {len(table.nodes) - len(without)} of {len(table.nodes)} nodes"
    words += "".join(f"; {count} of attention: {reason}" for reason, count in attention.items())
    words += f" (kernel table of ONNX Runtime {table.onnxruntime}; nothing was run)"
    missing = Counter(f"{node.op_type} ({node.dtype}): {node.reason}" for node in without)
    return Placement(provider.label, state, words, [f"{count} {reason}" for reason, count in missing.items()])

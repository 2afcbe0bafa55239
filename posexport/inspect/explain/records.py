"""The results of `posexport.inspect.explain`, as JSON and as text. Imports no torch. Times are milliseconds."""

from typing import Literal

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posexport.base.targets.providers import PROVIDERS
from posexport.run.bundle.manifest import PassSpec

#: the purpose of a kernel
Share = Literal["positions", "attention", "rest"]
SHARES: tuple[Share, ...] = ("positions", "attention", "rest")


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one of ONNX Runtime's operators in one call: how many, where, how long.

    An operator that runs others (Scan, If) has the time 0: the rest of its time is the profile's overhead.
    """

    op_type: str
    provider: str
    count: int
    ms: float


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one thing costs, and the kernels that do it, longest first.

    ``nodes``: how many nodes of this type the graph has; of an operator that others call, which are named ``within``,
    how many these are. 0: it is no type of node.
    """

    share: Share
    name: str
    nodes: int
    within: list[str]
    ms: float
    kernels: list[Kernel]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes of one type are computed. ``rejected``: what else there was, and why not."""

    node_type: str
    nodes: int
    lowering: str
    rejected: dict[str, str]


class GraphCost(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one graph, medians of ``runs`` calls.

    Attributes:
        ms: time of a call without a profile.
        profiled_ms: time of a call while ONNX Runtime writes a profile, which costs time for every kernel.
        kernels_ms: the time in kernels, by the profile; ``rows`` add up to it.
    """

    file: str
    runs: int
    ms: float
    profiled_ms: float
    kernels_ms: float
    decisions: list[Decision]
    rows: list[CostRow]

    def fraction(self, share: Share) -> float:
        """The fraction of the kernels' time that a share takes, 0 to 1."""
        return sum(cost.ms for cost in self.rows if cost.share == share) / self.kernels_ms if self.kernels_ms else 0.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's graphs. ``call``: the sizes of a call, in words; ``passes``: what graph passes did to all of them."""

    bundle: str
    target: str
    provider: str
    threads: int
    onnxruntime: str
    call: str
    parts: list[GraphCost]
    passes: dict[str, PassSpec] = {}

    def to_json(self) -> str:
        document = msgspec.to_builtins(self)
        for graph, fields in zip(self.parts, document["parts"], strict=True):
            fields["shares"] = {share: graph.fraction(share) for share in SHARES}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


#: kernels of a row that are named; ``--json`` has all
_NAMED = 6


def shown(explanation: Explanation) -> RenderableType:
    """The call and the graph passes, then for each graph its lowerings, its times and the shares."""
    threads = f"{explanation.threads or 'all'} thread{'' if explanation.threads == 1 else 's'}"
    head = (
        f"{explanation.bundle}, made for {explanation.target}: {explanation.call}; {explanation.provider}, {threads}, "
        f"ONNX Runtime {explanation.onnxruntime}"
    )
    provider = PROVIDERS[explanation.provider].ort_name
    parts = [piece for graph in explanation.parts for piece in _tables_of(graph, provider)]
    passes = [_passes(explanation)] if explanation.passes else []
    return Group(Text(head), *passes, *parts, *(Text(note) for note in notes(explanation)))


def notes(explanation: Explanation) -> list[str]:
    decisions = [decision for graph in explanation.parts for decision in graph.decisions]
    return [] if decisions else ["no lowerings are recorded: the bundle has no attention of posexport's"]


def _tables_of(graph: GraphCost, provider: str) -> list[RenderableType]:
    pieces: list[RenderableType] = []
    if graph.decisions:
        pieces.append(_decisions(graph))
    return [*pieces, _rows(graph, provider), Text(summary(graph))]


def summary(graph: GraphCost) -> str:
    shares = ", ".join(f"{share} {graph.fraction(share):.1%}" for share in SHARES)
    return (
        f"{graph.file}: {shares} of {_ms(graph.kernels_ms)} ms in kernels; a call takes {_ms(graph.ms)} ms, "
        f"{_ms(graph.profiled_ms)} while it is profiled (medians of {graph.runs})"
    )


def _decisions(graph: GraphCost) -> Table:
    table = Table(title=graph.file, title_justify="left", box=box.SIMPLE)
    for name in ("node type", "nodes", "lowering", "not taken"):
        table.add_column(name, justify="right" if name == "nodes" else "left")
    for decision in graph.decisions:
        table.add_row(decision.node_type, str(decision.nodes or ""), decision.lowering, _refused(decision))
    return table


def _passes(explanation: Explanation) -> Table:
    table = Table(title="graph passes", title_justify="left", box=box.SIMPLE)
    for name in ("pass", "nodes", "recognised", "not applied"):
        table.add_column(name, justify="right" if name == "nodes" else "left")
    for name, spec in explanation.passes.items():
        recognised, rejected = ("\n".join(lines) for lines in (spec.recognised, spec.rejected))
        table.add_row(name, str(spec.nodes), recognised, rejected or "none")
    return table


def _refused(decision: Decision) -> str:
    return "\n".join(f"{name}: {reason}" for name, reason in decision.rejected.items()) or "none"


def _rows(graph: GraphCost, provider: str) -> Table:
    table = Table(title=f"{graph.file}: where a call's time goes", title_justify="left", box=box.SIMPLE)
    for name in ("", "of", "nodes", "ms", "share", "kernels"):
        table.add_column(
            name, justify="right" if name in ("nodes", "ms", "share") else "left", no_wrap=name != "kernels"
        )
    before = ""
    for cost in graph.rows:
        table.add_row(
            cost.share if cost.share != before else "",
            "\n".join([cost.name, *(f"  in {caller}" for caller in cost.within)]),
            str(cost.nodes or ""),
            _ms(cost.ms),
            f"{cost.ms / graph.kernels_ms:.1%}" if graph.kernels_ms else "",
            _kernels(cost, provider),
        )
        before = cost.share
    return table


def _kernels(cost: CostRow, provider: str) -> str:
    named = [_kernel(kernel, provider) for kernel in cost.kernels[:_NAMED]]
    if remaining := cost.kernels[_NAMED:]:
        count = sum(kernel.count for kernel in remaining)
        named.append(f"{count} others {_ms(sum(kernel.ms for kernel in remaining))}")
    return ", ".join(named)


def _kernel(kernel: Kernel, provider: str) -> str:
    where = "" if kernel.provider == provider else f" on {kernel.provider}"
    took = f" {_ms(kernel.ms)}" if kernel.ms else ""
    return f"{kernel.count} {kernel.op_type}{where}{took}"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"

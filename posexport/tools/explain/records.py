"""The results of `posexport.tools.explain`, as JSON and as text. Imports no torch. Times are milliseconds."""

from typing import Literal

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posexport.bundle.manifest import PassSpec
from posexport.targets.providers import PROVIDERS

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
    """One graph; times are medians of ``runs`` calls.

    ``ms``: a call as it is; ``profiled_ms``: one that ONNX Runtime writes a profile of, which takes time for every
    kernel; ``kernels_ms``: what it says of that for kernels. ``rows`` add up to the last, and shares are shares of it.
    """

    file: str
    runs: int
    ms: float
    profiled_ms: float
    kernels_ms: float
    decisions: list[Decision]
    rows: list[CostRow]

    def taken(self, share: Share) -> float:
        """The fraction of the kernels' time in a share, 0 to 1."""
        return sum(row.ms for row in self.rows if row.share == share) / self.kernels_ms if self.kernels_ms else 0.0


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
        for part, fields in zip(self.parts, document["parts"], strict=True):
            fields["shares"] = {share: part.taken(share) for share in SHARES}
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
    parts = [piece for part in explanation.parts for piece in _part(part, PROVIDERS[explanation.provider].ort_name)]
    passes = [_passes(explanation)] if explanation.passes else []
    return Group(Text(head), *passes, *parts, *(Text(note) for note in notes(explanation)))


def notes(explanation: Explanation) -> list[str]:
    decisions = [decision for part in explanation.parts for decision in part.decisions]
    return [] if decisions else ["no lowerings are recorded: the bundle has no attention of posexport's"]


def _part(part: GraphCost, provider: str) -> list[RenderableType]:
    pieces: list[RenderableType] = []
    if part.decisions:
        pieces.append(_decisions(part))
    return [*pieces, _rows(part, provider), Text(summary(part))]


def summary(part: GraphCost) -> str:
    shares = ", ".join(f"{share} {part.taken(share):.1%}" for share in SHARES)
    return (
        f"{part.file}: {shares} of {_ms(part.kernels_ms)} ms in kernels; a call takes {_ms(part.ms)} ms, "
        f"{_ms(part.profiled_ms)} while it is profiled (medians of {part.runs})"
    )


def _decisions(part: GraphCost) -> Table:
    table = Table(title=part.file, title_justify="left", box=box.SIMPLE)
    for name in ("node type", "nodes", "lowering", "not taken"):
        table.add_column(name, justify="right" if name == "nodes" else "left")
    for decision in part.decisions:
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


def _rows(part: GraphCost, provider: str) -> Table:
    table = Table(title=f"{part.file}: where a call's time goes", title_justify="left", box=box.SIMPLE)
    for name in ("", "of", "nodes", "ms", "share", "kernels"):
        table.add_column(
            name, justify="right" if name in ("nodes", "ms", "share") else "left", no_wrap=name != "kernels"
        )
    before = ""
    for row in part.rows:
        table.add_row(
            row.share if row.share != before else "",
            "\n".join([row.name, *(f"  in {caller}" for caller in row.within)]),
            str(row.nodes or ""),
            _ms(row.ms),
            f"{row.ms / part.kernels_ms:.1%}" if part.kernels_ms else "",
            _kernels(row, provider),
        )
        before = row.share
    return table


def _kernels(row: CostRow, provider: str) -> str:
    named = [_kernel(kernel, provider) for kernel in row.kernels[:_NAMED]]
    if remaining := row.kernels[_NAMED:]:
        count = sum(kernel.count for kernel in remaining)
        named.append(f"{count} others {_ms(sum(kernel.ms for kernel in remaining))}")
    return ", ".join(named)


def _kernel(kernel: Kernel, provider: str) -> str:
    where = "" if kernel.provider == provider else f" on {kernel.provider}"
    took = f" {_ms(kernel.ms)}" if kernel.ms else ""
    return f"{kernel.count} {kernel.op_type}{where}{took}"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"

"""An explanation as text for a terminal. Imports no torch."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posexport.targets.providers import PROVIDERS
from posexport.tools.explain.records import SHARES, Decision, Explanation, Kernel, Part, Row

#: kernels of a row that are named; ``--json`` has all
_NAMED = 6


def shown(explanation: Explanation) -> RenderableType:
    """What was run, what graph passes did, then for each graph its decisions, where its time goes, and the shares."""
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


def _part(part: Part, provider: str) -> list[RenderableType]:
    pieces: list[RenderableType] = []
    if part.decisions:
        pieces.append(_decisions(part))
    return [*pieces, _rows(part, provider), Text(summary(part))]


def summary(part: Part) -> str:
    shares = ", ".join(f"{share} {part.taken(share):.1%}" for share in SHARES)
    return (
        f"{part.file}: {shares} of {_ms(part.kernels_ms)} ms in kernels; a call takes {_ms(part.ms)} ms, "
        f"{_ms(part.profiled_ms)} while it is profiled (medians of {part.runs})"
    )


def _decisions(part: Part) -> Table:
    table = Table(title=part.file, title_justify="left", box=box.SIMPLE)
    for name in ("node type", "nodes", "lowering", "not taken"):
        table.add_column(name, justify="right" if name == "nodes" else "left")
    for decision in part.decisions:
        table.add_row(decision.node_type, str(decision.nodes or ""), decision.lowering, _refused(decision))
    return table


def _passes(found: Explanation) -> Table:
    table = Table(title="graph passes", title_justify="left", box=box.SIMPLE)
    for name in ("pass", "nodes", "recognised", "not applied"):
        table.add_column(name, justify="right" if name == "nodes" else "left")
    for name, spec in found.passes.items():
        recognised, rejected = ("\n".join(each) for each in (spec.recognised, spec.rejected))
        table.add_row(name, str(spec.nodes), recognised, rejected or "none")
    return table


def _refused(decision: Decision) -> str:
    return "\n".join(f"{name}: {reason}" for name, reason in decision.rejected.items()) or "none"


def _rows(part: Part, provider: str) -> Table:
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


def _kernels(row: Row, provider: str) -> str:
    named = [_kernel(kernel, provider) for kernel in row.kernels[:_NAMED]]
    if others := row.kernels[_NAMED:]:
        count = sum(kernel.count for kernel in others)
        named.append(f"{count} others {_ms(sum(kernel.ms for kernel in others))}")
    return ", ".join(named)


def _kernel(kernel: Kernel, provider: str) -> str:
    where = "" if kernel.provider == provider else f" on {kernel.provider}"
    took = f" {_ms(kernel.ms)}" if kernel.ms else ""
    return f"{kernel.count} {kernel.op_type}{where}{took}"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"

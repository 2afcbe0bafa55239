"""What a proof lets one say of a bundle: proven, or less than that. The one place that decides. Imports no torch."""

from dataclasses import dataclass

from posexport.parity.report.record import Record


@dataclass(frozen=True)
class Verdict:
    """``words``: the verdict as the last line of ``posexport convert`` says it."""

    proven: bool
    words: str


def verdict(proof: Record | None) -> Verdict:
    """Proven is what passed on the whole grid.

    No lengths of the user's choice, no point skipped, and no branch of the graph that did not run.
    ``proof``: None where nothing was checked.
    """
    if proof is None:
        return Verdict(False, "NOT proven: nothing was checked")
    if not proof.passed:
        return Verdict(False, "NOT proven: parity was missed")
    if proof.tolerance is not None:
        return Verdict(False, f"within {proof.tolerance:g}")
    if proof.scope == "sample":
        return Verdict(False, "checked on the stored sample")
    if proof.lengths:
        noun = "token" if proof.lengths == [1] else "tokens"
        return Verdict(False, f"checked at {', '.join(map(str, proof.lengths))} {noun}, not proven")
    skipped = [point for point in proof.points if point.verdict == "skipped"]
    if skipped:
        shortest = min(skipped, key=lambda point: (point.length, point.batch))
        count = f"{len(skipped)} point{'s' if len(skipped) > 1 else ''}"
        return Verdict(False, f"proven except {count}, the first {shortest.where}: {shortest.note}")
    if proof.unreached:
        first, *others = proof.unreached
        more = f", and {len(others)} more branches" if others else ""
        return Verdict(False, f"proven except {first.branch} ({first.note}){more}")
    return Verdict(True, "proven in emulation" if proof.emulated else "proven")

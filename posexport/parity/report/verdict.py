"""What a proof lets one say of a bundle: proven, or less than that. The one place that decides. Imports no torch."""

from dataclasses import dataclass

import msgspec

from posexport.parity.report.proof import CACHE, Proof


@dataclass(frozen=True)
class Verdict:
    """``words``: the verdict as the last line of ``posexport convert`` says it."""

    proven: bool
    words: str


def verdict(proof: Proof | None) -> Verdict:
    """Proven is what passed on the whole grid.

    No lengths of the user's choice, no point skipped, and no branch of the graph that did not run.
    ``proof``: None where nothing was checked.
    """
    if proof is None:
        return Verdict(False, "NOT proven: nothing was checked")
    if not proof.passed:
        missed = proof.float32 is not None and proof.float32.passed
        return Verdict(False, f"NOT proven: {proof.precision} does not agree" if missed else _MISSED)
    if proof.float32 is not None and not proof.lengths:
        return _quantized(proof, proof.float32)
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


_MISSED = "NOT proven: parity was missed"


def _quantized(proof: Proof, float32: Proof) -> Verdict:
    """Of a quantized graph two things are said: what its float32 graph is proven to be, and how far it agrees.

    It is proven where the float32 graph is, all of its own branches ran, and nothing was skipped.
    """
    before = verdict(float32)
    own = verdict(msgspec.structs.replace(proof, float32=None))
    figures = ", ".join(
        f"{output} " * (len(proof.agreement) > 1) + f"mean cosine {found.cosine:.4f}"
        for output, found in proof.agreement.items()
        if output != CACHE
    )
    agrees = f"{proof.precision} agrees{f': {figures}' if figures else ''}"
    exceptions = "" if own.proven else f" ({own.words})"
    return Verdict(before.proven and own.proven, f"{before.words} in float32, {agrees}{exceptions}")

"""A proof in a sentence or two: the first failure, or how much passed. Imports no torch."""

from posexport.parity.report.points import Point
from posexport.parity.report.proof import Proof


def describe(proof: Proof) -> str:
    """The first failure in a sentence or two; the counts where there is none."""
    failed = [point for point in proof.points if point.verdict == "fail"]
    if proof.findings and all(point.tolerance is None and not point.output for point in failed):
        return proof.findings[0]
    if failed:
        sizes = {p.length: p.point.size for p in proof.points}
        right = sorted({p.length for p in proof.points if p.verdict == "pass"} - {p.length for p in failed})
        before = [sizes[n] for n in right if n < failed[0].length]
        shorter = f" (right at length {_listed(before)})" if before else ""
        where = f" {proof.located}" if proof.located else ""
        return f"{_point_failure(failed[0])}{shorter}; {_count(len(failed), 'failure')} in all.{where}"
    for stray in proof.strays:
        return stray
    missed = [item for item in proof.medians if item.verdict == "fail"]
    if missed:
        worst = max(missed, key=lambda item: item.ratio)
        return f"{worst.describe()}; no single point exceeds its own tolerance, all together are less exact"
    for invariant in proof.invariants:
        if invariant.verdict == "fail":
            return f"invariant at length {invariant.length}: {invariant.name}: {invariant.note}"
    if not proof.passed:
        return "no point was checked"
    return _success(proof)


def _success(proof: Proof) -> str:
    counts = proof.summary()
    parts = [f"{_count(counts.passed, 'comparison')} passed"]
    medians = max((item.ratio for item in proof.medians), default=None)
    parts += [] if medians is None else [f"median error at most {medians:.2g} times PyTorch's"]
    parts += [f"{_count(counts.refused, 'input')} outside the limits rejected"] if counts.refused else []
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    held = sum(item.verdict == "pass" for item in proof.invariants)
    parts += [f"{_count(held, 'invariant')} ok"] if held else []
    ran = len(proof.coverage) - len(proof.unreached)
    parts += (
        [f"{ran} of {_count(len(proof.coverage), 'branch', 'branches')} of the graph ran"] if proof.coverage else []
    )
    sample = "; this is the sample stored in the bundle, the whole grid needs --against SOURCE"
    shown = "" if proof.conclusion is None else f"{proof.conclusion}; "
    return shown + ", ".join(parts) + (sample if proof.scope == "sample" else "")


def _point_failure(point: Point) -> str:
    if point.error is None or point.tolerance is None:
        output = f"{point.output} at " if point.output else ""
        return f"{output}{point.where}: {point.note}"
    own = f", PyTorch's float32 baseline error is {point.torch_worst:.1e}" if point.torch_worst is not None else ""
    note = f" ({point.note})" if point.note else ""
    return f"{point.output} at {point.where}: error {point.error:.1e} exceeds {point.tolerance:.1e}{own}{note}"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"


def _listed(sizes: list[str]) -> str:
    return ", ".join(sizes[:5]) + (" ..." if len(sizes) > 5 else "")

"""Findings for a terminal: a line each, with details on demand."""

from collections.abc import Iterator

from posexport.inspect.audit.finding import Findings


def lines(findings: Findings, *, details: bool = False) -> Iterator[str]:
    """A line for each finding; ``details``: also where, why and what to do."""
    from posexport.inspect.audit.registry import RULES

    for finding in findings:
        more = f" (and {finding.more} more)" if finding.more else ""
        yield f"{finding.file}: {finding.severity} {finding.code} {finding.message}{more}"
        if details:
            if finding.nodes:
                yield f"    nodes: {', '.join(finding.nodes)}"
            yield f"    why: {RULES[finding.code].why}"
            yield f"    do: {finding.remedy}"
    for known in findings.recognised:
        yield f"{known.file}: {known.kind}: {known.what}"
    for code, reason in findings.skipped.items():
        yield f"{findings.path}: {code} did not run: {reason}"
    yield summary(findings)


def summary(findings: Findings) -> str:
    """The last line: how many files, and how many findings of each severity."""
    files = f"{len(findings.files)} file" + "s" * (len(findings.files) != 1)
    if not findings:
        return f"{files} audited by {len(findings.rules)} rules: nothing found"
    counts = findings.counts
    kinds = [
        f"{counts[severity]} {severity}" + "s" * (counts[severity] != 1)
        for severity in ("error", "warning", "note")
        if counts[severity]
    ]
    return f"{files} audited by {len(findings.rules)} rules: {', '.join(kinds)}"

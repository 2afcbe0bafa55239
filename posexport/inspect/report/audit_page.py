"""One HTML file about the findings of an audit, with the piece of the graph around each. Imports no torch."""

from datetime import UTC, datetime
from pathlib import Path

from posexport.inspect import pages
from posexport.inspect.audit.finding import Findings
from posexport.inspect.audit.formats.text import summary
from posexport.inspect.report.audited import shown
from posexport.version import VERSION


def audit_page(findings: Findings, target: Path) -> bytes:
    """The page about the audit of ``target``, a graph or a folder with some."""
    worst = next(iter(findings), None)
    css = {"error": " bad", "warning": " less"}.get(worst.severity if worst else "", "")
    return pages.render(
        "audit.html",
        name=target.resolve().name,
        files=findings.files,
        verdict=summary(findings),
        css=css,
        audit=shown(findings, target if target.is_dir() else target.parent),
        run=any(code.startswith("PX7") for code in findings.rules),
        skipped=findings.skipped,
        today=datetime.now(UTC).date().isoformat(),
        version=VERSION,
    )

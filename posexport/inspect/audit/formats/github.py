"""Findings as workflow commands of GitHub Actions, which mark the file in a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from collections.abc import Iterator

from posexport.inspect.audit.finding import Findings

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def lines(findings: Findings) -> Iterator[str]:
    """A command for each finding."""
    for finding in findings:
        where = f" at {finding.nodes[0]}" if finding.nodes else ""
        title = f"{finding.code} {finding.rule}"
        text = f"{finding.message}{where}. {finding.remedy}"
        yield f"::{_LEVELS[finding.severity]} file={_property(finding.file)},title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

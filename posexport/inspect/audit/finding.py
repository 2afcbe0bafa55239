"""Findings of an audit, and the list of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

#: error: outputs are wrong, or a call fails, for inputs that the file declares; warning: the same for some of these
#: inputs, or on some providers; note: slower than it could be, or useful to know
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one file.

    Attributes:
        code: of the rule, for example ``PX101``.
        rule: its name, for example ``baked-size``.
        severity: see `Severity`.
        file: relative to the folder of the audit.
        message: one sentence about the fault, with values.
        nodes: names of the nodes where it is, the first one first; a node without a name has its output's name.
        remedy: what to do.
        more: how many further places of the same kind the rule left out.
    """

    code: str
    rule: str
    severity: Severity
    file: str
    message: str
    nodes: tuple[str, ...] = ()
    remedy: str = ""
    more: int = 0


class Recognised(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised part of a graph: ``kind`` (position encoding, attention, cache ...), parameters and nodes."""

    file: str
    kind: str
    what: str
    nodes: tuple[str, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `posexport.audit`: a sequence of findings, the worst first.

    Attributes:
        path: what was audited.
        findings: sorted by severity, then code.
        recognised: encodings and attention, with their parameters.
        files: the graphs that were read.
        rules: codes of all rules that ran.
        skipped: rules that could not run, with the reason.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    recognised: tuple[Recognised, ...] = ()
    files: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    skipped: dict[str, str] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        return bool(self.findings)

    def at_least(self, severity: Severity) -> "Sequence[Finding]":
        """The findings of ``severity`` or worse."""
        least = SEVERITIES.index(severity)
        return [finding for finding in self.findings if SEVERITIES.index(finding.severity) >= least]

    @property
    def counts(self) -> "Counter[Severity]":
        return Counter(finding.severity for finding in self.findings)

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def to_builtins(self) -> Any:
        return msgspec.to_builtins(self)

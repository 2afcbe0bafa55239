"""The record of an audit rule, and the record of a place at which its check finds the fault."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from posexport.inspect.audit.finding import Severity

if TYPE_CHECKING:
    from posexport.inspect.audit.subject import Subject

#: the inputs of a rule: only the graph; also the table of the provider's kernels; files of its folder (config.json ..);
#: the checkpoint; outputs of calls
Reads = Literal["graph", "kernels", "folder", "checkpoint", "calls"]


@dataclass(frozen=True)
class Place:
    """One place in a graph at which a rule finds its fault.

    Attributes:
        message: one sentence about the fault, with sizes and values.
        nodes: the nodes, the first one first.
        severity: None: the severity of the rule.
        remedy: None: the remedy of the rule.
    """

    message: str
    nodes: Sequence[ir.Node | str] = ()
    severity: Severity | None = None
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A fault that files have, and how to find it.

    Attributes:
        code: ``PX`` and three digits; the first is the group of `posexport.inspect.audit.registry.GROUPS`.
        name: two or three words with hyphens.
        severity: the severity of most findings.
        finds: one clause: the fault.
        why: one or two sentences: the effect on users.
        remedy: one sentence: what to do.
        check: yields every place with the fault.
        bad: a graph that has the fault, in ONNX's text syntax [1]; empty: the rule does not read graphs alone.
        good: the same graph without the fault.
        provider: the execution provider that both graphs are for.
        files: JSON files of the repository of both graphs, by name, for rules that read them.
        reads: what `check` needs; rules of files and calls run only where there are some.

    [1] https://onnx.ai/onnx/repo-docs/Syntax.html
    """

    code: str
    name: str
    severity: Severity
    finds: str
    why: str
    remedy: str
    check: "Callable[[Subject], Iterable[Place]]"
    bad: str = ""
    good: str = ""
    provider: str = "cpu"
    files: Mapping[str, str] = field(default_factory=dict)
    reads: Reads = "graph"


def name_of(node: ir.Node | str) -> str:
    """A name for a node: its name or, as viewers show it, that of its first output."""
    if isinstance(node, str):
        return node
    return node.name or next((value.name for value in node.outputs if value.name), node.op_type)

"""The record of a rule, and what its check yields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from posexport.tools.audit.finding import Severity

if TYPE_CHECKING:
    from posexport.tools.audit.subject import Subject

#: what a rule reads: the graph alone; files beside it too (config.json ..); the checkpoint; or outputs of calls
Reads = Literal["graph", "folder", "checkpoint", "calls"]


@dataclass(frozen=True)
class Place:
    """One place where a rule applies.

    Attributes:
        message: one sentence on it, with sizes and values.
        nodes: where it is, the first node first.
        severity: if it is not the rule's.
        remedy: if it is not the rule's.
    """

    message: str
    nodes: Sequence[ir.Node | str] = ()
    severity: Severity | None = None
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A fault that files have, and how to find it.

    Attributes:
        code: ``PX`` and three digits; the first is the group of `posexport.tools.audit.registry.GROUPS`.
        name: two or three words with hyphens.
        severity: of most of its findings.
        finds: one sentence: what is found.
        why: one or two sentences: what happens to whom.
        remedy: one sentence: what to do.
        check: yields every place.
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
    """A name to find a node by: in a viewer, nodes without a name have the name of their first output."""
    if isinstance(node, str):
        return node
    return node.name or next((value.name for value in node.outputs if value.name), node.op_type)

"""Remarks on lines of a user's module that its graph was made from, for the message if its proof fails.

It is kept in memory, not in the graph: the file has no paths of the machine that wrote it
(`posexport.export.save`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.export.messages import meaning
from posexport.export.trace import DECIDED
from posexport.graph.queries import with_bodies
from posexport.system.user_code import line_of_trace

_STACK = "pkg.torch.onnx.stack_trace"
#: how ONNX Runtime names a node in its messages
_NAMED = re.compile(r"(?:Name: ?|Node ?\()'?([\w./-]+)'?")


@dataclass(frozen=True)
class Written:
    """The user's lines, by the name of the node that they became.

    ``suspects``: lines that a missed proof may come from, with a remark on each.
    """

    lines: Mapping[str, str] = field(default_factory=dict)
    suspects: Mapping[str, str] = field(default_factory=dict)

    def about(self, text: str) -> str | None:
        """A message of ONNX Runtime explained for the module."""
        named = _NAMED.search(text)
        return meaning(text, self.lines.get(named[1], "") if named else "")

    def reasons(self) -> Iterator[str]:
        """Yields a sentence for every suspect that has an explanation."""
        for line, what in self.suspects.items():
            if (sentence := meaning(what, line)) is not None:
                yield sentence


def written_by(model: ir.Model) -> Written:
    """Read from what the tracer noted at the nodes of ``model``, which `provenance.strip` drops."""
    lines: dict[str, str] = {}
    suspects = {
        line: f"was decided {choice} by a size while the module was traced"
        for line, choice in model.meta.get(DECIDED, {}).items()
    }
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for body in with_bodies(graph):
            for node in body:
                line = line_of_trace(node.metadata_props.get(_STACK, ""))
                if node.name and line:
                    lines[node.name] = line
                if node.op_type == "Resize" and node.attributes.get_int("antialias", False):
                    suspects[line] = "a node Resize with antialias, in a graph that is not proven"
    return Written(lines, suspects)

"""Names for all nodes of a model, so that ONNX Runtime's profile says where each kernel comes from. Imports no torch.

ONNX Runtime puts functions in place of their calls, and fuses nodes; of the names of nodes, their function's and their
own, it makes names that still hold these (``_inlfunc_RelativeKeyScores_`` + name, name + ``/MatMulScaleFusion/``). The
nodes of our functions' bodies have no names in the file, so the profiled model has others than the file: nothing else
is changed.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posexport.graph.protos import all_nodes
from posexport.spec import DOMAIN, FUNCTION
from posexport.tools.explain.dataflow import positional
from posexport.tools.explain.records import Share

_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAME = re.compile(r"posexport@(?:(?P<index>\d+)|(?P<function>[A-Za-z_]\w*))@")
#: of kernels whose nodes' names are lost in fusions
_ATTENTION = re.compile(r"Attention\d*$")
_ROTATION = "RotaryEmbedding"
#: what is added to scores for many layers, where it is but a mask
_MASK = re.compile(r"(Causal|Masked|PairMasked)*Bias\d*")

TABLES = "positions in the graph"
MODULES = "attention in the graph"
OTHERS = "all else"


@dataclass(frozen=True)
class Origin:
    """What a kernel works for: which share, and what of it, such as a function's name."""

    share: Share
    of: str


REST = Origin("rest", OTHERS)


class Origins:
    """Where kernels come from, by their names, for a model (onnx.ModelProto) whose nodes this renames."""

    def __init__(self, model: Any, roles: Mapping[str, str]) -> None:
        counted = positional(model.graph.node, roles)
        self._graph = [_origin(node, index in counted) for index, node in enumerate(model.graph.node)]
        for index, node in enumerate(model.graph.node):
            _rename([node], f"posexport@{index}@")
        for function in model.functions:
            if function.domain == DOMAIN:
                _rename(function.node, f"posexport@{function.name}@")
        bodies = {f.name: f.node for f in model.functions if f.domain == DOMAIN}
        #: nodes of each function in the graph, and functions that call it
        self.nodes = dict.fromkeys(bodies, 0)
        self.callers: dict[str, list[str]] = {name: [] for name in bodies}
        for node in all_nodes(model.graph.node):
            if node.domain == DOMAIN and node.op_type in bodies:
                self.nodes[node.op_type] += 1
        for name, body in bodies.items():
            for callee in dict.fromkeys(
                n.op_type for n in all_nodes(body) if n.domain == DOMAIN and n.op_type in bodies
            ):
                self.callers[callee].append(name)

    def of(self, name: str, op_type: str, around: Origin | None) -> Origin:
        """The origin of a kernel with this name, in the body of a kernel that comes from ``around``."""
        match = _NAME.search(name)
        if match is None:
            if around is not None:
                return around
            if op_type == _ROTATION:
                return Origin("positions", op_type)
            return Origin("attention", op_type) if _ATTENTION.search(op_type) else REST
        return self._graph[int(match["index"])] if match["index"] else of_function(match["function"])

    def count(self, name: str) -> int:
        """Nodes of a type; of one that only other functions call, those of its callers."""
        if name not in self.nodes:
            return 0
        return self.nodes[name] or sum(self.count(caller) for caller in self.callers[name])


def of_function(name: str) -> Origin:
    """Functions of our domain are attention and masks, or else terms, biases and rotations."""
    return Origin("attention" if _ATTENTION.search(name) or _MASK.fullmatch(name) else "positions", name)


def _rename(nodes: Any, prefix: str) -> None:
    for number, node in enumerate(all_nodes(nodes)):
        node.name = f"{prefix}{number}"


def _origin(node: Any, counted: bool) -> Origin:
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    if node.domain == DOMAIN:
        return of_function(node.op_type)
    if FUNCTION in metadata:
        return of_function(metadata[FUNCTION])
    if counted:
        return Origin("positions", TABLES)
    return Origin("attention", MODULES) if _in_attention(metadata.get(_CLASSES, "")) else REST


def _in_attention(classes: str) -> bool:
    """Whether the innermost module is an attention, not one of its projections.

    ``classes``: a Python list of names of classes from the outermost to the innermost, then the operator's.
    """
    try:
        names = ast.literal_eval(classes)
    except (ValueError, SyntaxError):
        return False
    return isinstance(names, list) and len(names) > 1 and str(names[-2]).endswith("Attention")

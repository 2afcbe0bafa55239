"""Where each kernel of ONNX Runtime's profile comes from: names for all nodes, and which nodes compute positions.

ONNX Runtime inlines functions and fuses nodes, but keeps the names of functions and nodes as parts of new names
(``_inlfunc_RelativeKeyScores_`` + name, name + ``/MatMulScaleFusion/``). The nodes in posexport's function bodies have
no names in the file, so the profiled model is a copy in which all nodes are named. Imports no torch.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from posexport.base.spec import DOMAIN, FUNCTION
from posexport.graph.dataflow import dependents
from posexport.graph.queries import SHAPES, bodies
from posexport.inspect.explain.records import Share

#: counts tokens: what they return are positions
_COUNTING = frozenset(["Range", "CumSum"])
#: sums of rotated values are rotated
_SUMS = frozenset(["Add", "Sub", "Concat"])
_MASKS = ("mask", "lengths")


def positional(graph: ir.Graph, roles: Mapping[str, str]) -> set[ir.Node]:
    """The nodes that work for positions, of the graph and not of its bodies.

    ``roles``: of every input of the graph, as in `posexport.base.spec.InputSpec`. Products of tokens with positions,
    and their sums, are among them: rotations without a RotaryEmbedding node.
    """

    def of_roles(several: Collection[str]) -> list[ir.Value]:
        return [value for value in graph.inputs if roles.get(value.name or "") in several]

    content = dependents(graph, of_roles({*roles.values()} - {*_MASKS, "positions"}), breaks=SHAPES)
    masked = dependents(graph, of_roles(_MASKS), breaks=SHAPES | _COUNTING)
    # counted from the mask or from sizes, not from what tokens say
    counting = [node for node in graph if node.op_type in _COUNTING and content.isdisjoint(_read(node))]
    positions = [*of_roles(["positions"]), *(value for node in counting for value in node.outputs)]
    counted = dependents(graph, positions, breaks=SHAPES) - content - masked
    rotated: set[ir.Value] = set()
    nodes = set()
    for node in graph:
        read = _read(node)
        if node.op_type in SHAPES:
            continue
        if tokens := read & content:
            if (node.op_type == "Mul" and read & counted) or (node.op_type in _SUMS and tokens <= rotated):
                rotated.update(node.outputs)
                nodes.add(node)
        elif node.op_type in _COUNTING or (read & counted and not read & masked):
            nodes.add(node)
    return nodes


def _read(node: ir.Node) -> set[ir.Value]:
    inner = [inner_node for body in bodies(node).values() for inner_node in body.all_nodes()]
    return {value for inner_node in (node, *inner) for value in inner_node.inputs if value is not None}


_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAME = re.compile(r"posexport@(?:(?P<index>\d+)|(?P<function>[A-Za-z_]\w*))@")
#: operators of kernels that lose their nodes' names in fusions
_ATTENTION = re.compile(r"Attention\d*$")
_ROTATION = "RotaryEmbedding"
#: functions of a bias for many layers that is a mask only
_MASK = re.compile(r"(Causal|Masked|PairMasked)*Bias\d*")

TABLES = "positions in the graph"
MODULES = "attention in the graph"
OTHERS = "all else"


@dataclass(frozen=True)
class Origin:
    """The purpose of a kernel: its share, and a part of it, for example a function's name."""

    share: Share
    of: str


REST = Origin("rest", OTHERS)


class Origins:
    """The origins of kernels by their names, for a model; its nodes are renamed here."""

    def __init__(self, model: ir.Model, roles: Mapping[str, str]) -> None:
        counted = positional(model.graph, roles)
        self._graph = [_origin(node, node in counted) for node in model.graph]
        for index, node in enumerate(model.graph):
            inside = (inner_node for body in bodies(node).values() for inner_node in body.all_nodes())
            _rename([node, *inside], f"posexport@{index}@")
        functions = {function.name: function for function in model.functions.values() if function.domain == DOMAIN}
        for name, function in functions.items():
            _rename(function.all_nodes(), f"posexport@{name}@")
        #: nodes of each function in the graph, and functions that call it
        self.nodes = Counter(dict.fromkeys(functions, 0))
        self.nodes.update(_called(model.graph, functions))
        self.callers: dict[str, list[str]] = {name: [] for name in functions}
        for name, function in functions.items():
            for callee in dict.fromkeys(_called(function, functions)):
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
        """The number of nodes of a type; for a function that only functions call, of its callers' nodes."""
        if name not in self.nodes:
            return 0
        return self.nodes[name] or sum(self.count(caller) for caller in self.callers[name])


def of_function(name: str) -> Origin:
    """Functions of our domain are attention and masks, or else terms, biases and rotations."""
    return Origin("attention" if _ATTENTION.search(name) or _MASK.fullmatch(name) else "positions", name)


def _called(graph: ir.Graph | ir.Function, functions: Container[str]) -> list[str]:
    """The names of the functions that nodes of ``graph`` and of its bodies call, one a node."""
    return [node.op_type for node in graph.all_nodes() if node.domain == DOMAIN and node.op_type in functions]


def _rename(nodes: Iterable[ir.Node], prefix: str) -> None:
    for number, node in enumerate(nodes):
        node.name = f"{prefix}{number}"


def _origin(node: ir.Node, counted: bool) -> Origin:
    metadata = node.metadata_props
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

"""How an embedder's graph makes one vector of its tokens: pooling, projections and normalisation."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.graph.queries import is_weight
from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.analyses.sizes import Sizes

Kind = Literal["cls", "mean", "max", "lasttoken"]
#: outputs with one vector for each text; ``pooler_output`` is BERT's, which sentence-transformers does not read
_VECTORS = re.compile(r"^(sentence_)?embeddings?$|^text_embed(ding)?s?$|^pooled(_embeddings?)?$|^dense_vecs?$")
#: operators of one main input between the pooling and the output
_THROUGH = frozenset(
    [
        *("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Dropout", "Tanh", "Relu", "Gelu"),
        *("Sigmoid", "Clip", "LayerNormalization"),
    ]
)
#: operators that choose or reverse rows
_CHOOSING = ("Gather", "GatherElements", "GatherND", "Slice", "ReverseSequence", "If", "Compress", "ScatterElements")
_MOST_STEPS = 40


@dataclass(frozen=True)
class Pooled:
    """One vector for each text.

    Attributes:
        output: the graph's output.
        node: the operator that pools.
        kind: how.
        masked: padding takes no part; always, except where a mean is taken of all rows.
        projections: products with a weight after the pooling.
        normalized: it is divided by its norm.
    """

    output: ir.Value
    node: ir.Node
    kind: Kind
    masked: bool
    projections: Sequence[ir.Node]
    normalized: bool


def vectors(graph: ir.Graph, sizes: Sizes) -> list[ir.Value]:
    """Outputs with one vector for each text."""
    return [
        value
        for value in graph.outputs
        if _VECTORS.search((value.name or "").lower()) and len(sizes.of(value) or sizes.declared.get(value) or ()) == 2
    ]


def pooled(output: ir.Value, roles: Roles, sizes: Sizes) -> Pooled | None:
    """How ``output`` is made; None where that is not recognised."""
    projections: list[ir.Node] = []
    normalized = False
    value: ir.Value | None = output
    for _ in range(_MOST_STEPS):
        node = None if value is None else value.producer()
        if node is None:
            return None
        if kind := _kind(node, sizes):
            masked = node.op_type != "ReduceMean" or _reads_mask(node, roles)
            return Pooled(output, node, kind, masked, projections, normalized)
        if node.op_type in _THROUGH and not node.domain:
            value = node.inputs[0]
        elif node.op_type == "LpNormalization":
            normalized, value = True, node.inputs[0]
        elif node.op_type in ("Div", "Mul"):
            value, by_norm = _scaled(node)
            normalized = normalized or by_norm
        elif node.op_type in ("Add", "Sub"):
            value = next((v for v in node.inputs if v is not None and not _is_constant(v)), None)
            if sum(not _is_constant(v) for v in node.inputs if v is not None) != 1:
                return None
        elif (node.op_type in ("MatMul", "Gemm", "MatMulNBits") and is_weight(node.inputs[1], 2)) or (
            node.op_type == "MatMulNBits"
        ):
            projections.append(node)
            value = node.inputs[0]
        else:
            return None
    return None


def _kind(node: ir.Node, sizes: Sizes) -> Kind | None:
    """How a node pools along axis 1; None if it does not."""
    states = node.inputs[0] if node.inputs else None
    if node.domain or states is None or len(sizes.of(states) or (0, 0, 0)) != 3:
        return None
    if (step := states.producer()) is not None and step.op_type in _CHOOSING:
        return None  # the first row of what was chosen before
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) in (1, -2):
        index = sizes.constant(node.inputs[1])
        first = None if index is None or index.size != 1 else int(index.reshape(-1)[0])
        return {0: "cls", -1: "lasttoken"}.get(first) if first is not None else None  # type: ignore[return-value]
    if node.op_type == "Slice":
        bounds = [_integers(value, sizes) for value in node.inputs[1:4]]
        return "cls" if bounds[:3] in ([[0], [1], [1]], [[0], [1], [-2]]) else None
    kinds: dict[str, Kind] = {"ReduceMean": "mean", "ReduceSum": "mean", "ReduceMax": "max"}
    if node.op_type in kinds and _axes(node, sizes) in ([1], [-2]):
        return kinds[node.op_type]
    return None


def _axes(node: ir.Node, sizes: Sizes) -> list[int] | None:
    if len(node.inputs) > 1:
        return _integers(node.inputs[1], sizes)
    attribute = node.attributes.get_ints("axes")
    return None if attribute is None else list(attribute)


def _integers(value: ir.Value | None, sizes: Sizes) -> list[int] | None:
    array = sizes.constant(value)
    return None if array is None else [int(number) for number in array.reshape(-1)]


def _scaled(node: ir.Node) -> tuple[ir.Value | None, bool]:
    """The value that ``node`` scales, and whether by its own norm."""
    first, second = node.inputs[:2]
    if first is None or second is None:
        return None, False
    if node.op_type == "Mul" and (_is_constant(first) or _steps_to(first, second) is not None):
        first, second = second, first
    operators = _steps_to(second, first)
    squares = {"ReduceL2", "ReduceSumSquare", "ReduceSum", "MatMul", "Einsum"}
    return first, operators is not None and not operators.isdisjoint(squares)


def _steps_to(value: ir.Value, source: ir.Value) -> set[str] | None:
    """The operators from ``source`` to ``value``; None if it is not computed from it."""
    reached = list(sources(value, stops={source}))
    if source not in reached:
        return None
    return {node.op_type for step in reached if step is not source and (node := step.producer()) is not None}


def _reads_mask(node: ir.Node, roles: Roles) -> bool:
    """Whether rows of padding are 0 before a mean is taken, or there is no mask."""
    return not roles.masks or any(value in roles.masks for value in _products(node))


def _products(node: ir.Node) -> Iterator[ir.Value]:
    """What the rows of a mean are multiplied with or chosen by."""
    step = node.inputs[0].producer() if node.inputs[0] is not None else None
    if step is not None and step.op_type in ("Mul", "Where"):
        for value in step.inputs:
            yield from sources(value) if value is not None else ()


def _is_constant(value: ir.Value) -> bool:
    return ir.convenience.get_const_tensor(value) is not None

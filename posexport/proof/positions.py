"""Every place of a graph in half precision at which a number that depends on positions alone is rounded to 16 bits.

One rounding is allowed, the last: a value cast to 16 bits may be moved, then it meets an activation. A wrong graph of
a small random model can pass every numeric check, because its attention hardly looks at positions; so the graph itself
is read, operator by operator. The rules are written independently of those by which posexport chooses types
(`posexport.graph.precision.half`), which they check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from posexport.base.spec import InputSpec
from posexport.graph.queries import bodies
from posexport.graph.types import infer_types
from posexport.proof.proof import Outcome, Proof
from posexport.proof.report.points import Invariant
from posexport.proof.report.report import Report
from posexport.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

HALVES = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


class Origin(IntEnum):
    """Where a value's numbers come from; of several operands the greatest."""

    #: numbers in the graph's text
    CONSTANT = 0
    #: parameters, and values computed from them alone
    PARAMETER = 1
    #: rows of parameters that positions select: their values are the parameters'
    ROWS = 2
    #: one of two: masks, comparisons
    FLAG = 3
    #: lengths, positions, distances, and values computed from them: angles, logarithms, slopes times distances
    POSITION = 4
    #: what tokens say: embeddings and all after them
    ACTIVATION = 5


@dataclass(frozen=True)
class Traced:
    """A value's ``origin``; ``size``: elements of the largest parameter in it; ``narrow``: that has 16 bits."""

    origin: Origin
    size: int = 0
    narrow: bool = False


#: they move or choose among what they get
MOVES = frozenset(
    [
        *("Reshape", "Transpose", "Slice", "Gather", "GatherElements", "GatherND", "Unsqueeze", "Squeeze", "Expand"),
        *("Identity", "Flatten", "Tile", "Split", "DepthToSpace", "SpaceToDepth", "Trilu", "Pad", "Where", "Concat"),
        *("ScatterElements", "ScatterND", "TensorScatter", "Compress", "ReverseSequence"),
    ]
)
#: index of the first operand that selects elements and provides none
_PLACES = {
    **dict.fromkeys(("Reshape", "Slice", "Unsqueeze", "Squeeze", "Expand", "Tile", "Split", "Trilu", "Compress"), 1),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ReverseSequence", "TopK", "OneHot", "CumSum"), 1),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare"), 1),
}
_SIZES = frozenset(("Shape", "Size"))
_CHOOSING = frozenset(("Gather", "GatherElements", "GatherND"))
#: lengths and places
_COUNTS = frozenset(("NonZero", "ArgMax", "ArgMin", "Shape", "Size", "Range"))
#: counts of marked elements
_SUMS = frozenset(("CumSum", "ReduceSum"))
#: the output is an activation, if the parameter is as large as a layer's
_LAYERS = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul"))
#: elements of the largest parameter that counts as one of the position encoding itself
SMALL = 1 << 14


def numbers(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands that provide the elements of the result."""
    if node.op_type in _SIZES:
        return ()
    if node.op_type == "Where":
        return node.inputs[1:]
    if node.op_type == "Pad":
        return [value for index, value in enumerate(node.inputs) if index in (0, 2)]
    if node.op_type in ("ScatterElements", "ScatterND", "TensorScatter"):
        return [value for index, value in enumerate(node.inputs) if index != (2 if "Tensor" in node.op_type else 1)]
    return node.inputs[: _PLACES.get(node.op_type)]


def result(node: ir.Node, operands: Sequence[Traced], places: Sequence[Traced], dtype: ir.DataType | None) -> Traced:
    """What an output of ``node`` is, from the operands that `numbers` names and all others."""
    size = max((operand.size for operand in operands), default=0)
    narrow = any(operand.narrow and operand.size == size for operand in operands)
    largest = max((operand.origin for operand in operands), default=Origin.CONSTANT)
    origin = largest
    if dtype == ir.DataType.BOOL:
        origin = Origin.FLAG
    elif largest < Origin.ACTIVATION and (
        node.op_type in _COUNTS or (node.op_type in _SUMS and largest == Origin.FLAG)
    ):
        origin = Origin.POSITION
    elif node.op_type in _LAYERS and any(
        operand.origin in (Origin.PARAMETER, Origin.ROWS) and operand.size > SMALL for operand in operands
    ):
        origin = Origin.ACTIVATION
    elif node.op_type in _CHOOSING and largest <= Origin.ROWS:
        origin = _chosen(largest, places, dtype)
    elif node.op_type in ("Where", "OneHot") and largest <= Origin.CONSTANT:
        origin = Origin.FLAG
    return Traced(origin, size, narrow or (dtype in HALVES and origin <= Origin.ROWS))


def _chosen(of: Origin, places: Sequence[Traced], dtype: ir.DataType | None) -> Origin:
    """Rows of parameters: an embedding by tokens, a table by positions; integers of a table are places again."""
    by = max((operand.origin for operand in places), default=Origin.CONSTANT)
    if by == Origin.ACTIVATION:
        return Origin.ACTIVATION
    if by <= Origin.CONSTANT:
        return of
    return Origin.ROWS if dtype is None or dtype.is_floating_point() else Origin.POSITION


#: what an input is by its role
_OF_POSITIONS = ("positions", "grids", "places", "shapes", "lengths", "indices")
_ROLES = {**dict.fromkeys(_OF_POSITIONS, Origin.POSITION), "mask": Origin.FLAG}


def roundings(model: Path | bytes, inputs: Sequence[InputSpec]) -> list[str]:
    """A sentence for every place in ``model`` where a position is rounded; ``inputs``: with their roles."""
    graph = ir.from_proto(onnx.ModelProto.FromString(model)) if isinstance(model, bytes) else ir.load(model)
    InlinePass()(graph)
    infer_types(graph.graph, graph.opset_imports)
    roles: Mapping[str, str] = {spec.name: spec.role for spec in inputs}
    trace = _Trace()
    for value in graph.graph.inputs:
        trace.values[value] = Traced(_ROLES.get(roles.get(value.name or "", ""), Origin.ACTIVATION))
    trace.follow(graph.graph)
    return list(trace.places.values())


@dataclass
class _Trace:
    """The origins of values so far, and the sentences by node."""

    values: dict[ir.Value, Traced] = field(default_factory=dict)
    places: dict[ir.Node, str] = field(default_factory=dict)

    def follow(self, graph: ir.Graph) -> None:
        """Traces the nodes of ``graph`` in the order of execution."""
        for value in graph.initializers.values():
            self.values[value] = _parameter(value.const_value)
        for node in graph:
            if node.op_type == "If":
                branches = list(bodies(node).values())
                for branch in branches:
                    self.follow(branch)
                for index, value in enumerate(node.outputs):
                    self._join(value, [branch.outputs[index] for branch in branches])
            elif node.op_type in ("Loop", "Scan"):
                self._loop(node)
            else:
                self._node(node)

    def _loop(self, node: ir.Node) -> None:
        body = bodies(node)["body"]
        loop = node.op_type == "Loop"
        # a Loop's body gets the number of its turn and a condition first, and gives a condition first
        inner, outer = (body.inputs[2:], node.inputs[2:]) if loop else (body.inputs, node.inputs)
        for value in body.inputs[:2] if loop else ():
            self.values[value] = Traced(Origin.POSITION)
        states = len(inner) - (0 if loop else node.attributes["num_scan_inputs"].as_int())
        results = body.outputs[1:] if loop else body.outputs
        for value, fed in zip(inner, outer, strict=True):
            self.values[value] = self._of(fed)
        for _ in range(2):  # the state after one iteration enters the next
            self.follow(body)
            for before, after in zip(inner[:states], results[:states], strict=True):
                self._join(before, [before, after])
        for value, after in zip(node.outputs, results, strict=True):
            self.values[value] = self._of(after)

    def _join(self, value: ir.Value, joined: Sequence[ir.Value]) -> None:
        self.values[value] = max(
            (self._of(other) for other in joined), key=lambda operand: (operand.origin, operand.narrow)
        )

    def _of(self, value: ir.Value | None) -> Traced:
        return self.values.get(value, Traced(Origin.CONSTANT)) if value is not None else Traced(Origin.CONSTANT)

    def _node(self, node: ir.Node) -> None:
        if node.op_type == "Constant":
            attribute = node.attributes.get("value")
            for value in node.outputs:
                self.values[value] = _parameter(None if attribute is None else attribute.as_tensor())
            return
        data = [value for value in numbers(node) if value is not None]
        operands = [self._of(value) for value in data]
        places = [self._of(value) for value in node.inputs if value is not None and value not in data]
        for value in node.outputs:
            self.values[value] = result(node, operands, places, value.dtype)
        if node.op_type not in MOVES and node.outputs and (reason := self._rounds(node, data)):
            self.places.setdefault(node, f"{node.op_type} {node.name!r} {reason}")

    def _rounds(self, node: ir.Node, data: Sequence[ir.Value]) -> str:
        """Why ``node`` must not compute what it does; empty where it may."""
        value = node.outputs[0]
        if self._of(value).origin == Origin.ACTIVATION:
            return ""
        for operand in data:
            if self._of(operand).origin == Origin.POSITION and operand.dtype in HALVES:
                return f"reads {operand.name!r}, which is computed from positions and was rounded to {_type(operand)}"
        if self._of(value).origin != Origin.POSITION:
            return ""
        integer = any(operand.dtype is not None and not operand.dtype.is_floating_point() for operand in data)
        if value.dtype in HALVES and (node.op_type != "Cast" or integer):
            return f"computes {value.name!r} from positions in {_type(value)}"
        for operand in data:
            traced = self._of(operand)
            if traced.narrow and traced.origin <= Origin.ROWS and traced.size <= SMALL:
                return f"computes {value.name!r} from positions and {operand.name!r}, which was rounded to 16 bits"
        return ""


def _parameter(tensor: "ir.TensorProtocol | None") -> Traced:
    if tensor is None:
        return Traced(Origin.CONSTANT, 1)
    origin = Origin.CONSTANT if tensor.size <= 1 else Origin.PARAMETER
    return Traced(origin, tensor.size, tensor.dtype in HALVES)


def _type(value: ir.Value) -> str:
    return "" if value.dtype is None else value.dtype.name.lower()


NAME = "what positions alone lead to is rounded to 16 bits once, when it meets an activation"
#: places that a note names
_NAMED = 3


@dataclass(frozen=True)
class Positions:
    """The check that ``model``, a graph of posexport's in half precision, rounds no position.

    Of a source of parts ``model`` is the directory of their files.
    """

    source: Source
    model: Path | bytes

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with one invariant more."""
        del proof, outcome
        return _with_positions(report, self.source, self.model)


def _with_positions(report: Report, source: Source, model: Path | bytes) -> Report:
    graphs: Mapping[Path | bytes, Sequence[InputSpec]] = {model: source.inputs}
    if source.parts and isinstance(model, Path):
        graphs = {model / part.spec.file: part.spec.inputs for part in source.parts}
    places = [place for graph, inputs in graphs.items() for place in roundings(graph, inputs)]
    more = f", and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    invariant = Invariant(
        name=NAME,
        length=max((point.length for point in report.points if point.verdict == "pass"), default=0),
        output="",
        error=None,
        tolerance=None,
        verdict="fail" if places else "pass",
        note="; ".join(places[:_NAMED]) + more,
    )
    return msgspec.structs.replace(report, invariants=[*report.invariants, invariant])

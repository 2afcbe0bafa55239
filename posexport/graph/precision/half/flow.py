"""The policy of half precision, and the state of a program while the types of its values are decided.

Positions, and all that is computed from them, stay float32 until they meet an activation. Reductions, powers and
running sums of activations are float32 islands. Weights and activations have 16 bits.

A program is a graph, its branches and loops, and a copy of its function for every call, so that each call may have
different types; equal copies become one again. Forward, in the order of execution, every value gets its `Kind` and, if
it is an activation, whether it has 16 bits. Backward, values for which any type would do - parameters, masks, values
that are only moved - get the type that their readers need, so that a cast is as early as possible, and once (both
in `posexport.graph.precision.half.types`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import onnx_ir as ir

from posexport.graph.edits import claim
from posexport.graph.ops.states import RecurrenceSpec
from posexport.graph.precision.half.kernels import Kernels
from posexport.graph.queries import COMPARISONS, SIZES


class Kind(IntEnum):
    """Where the numbers of a float value come from; of several operands the greatest."""

    #: numbers in the graph's text, and masks made of them
    CONSTANT = 0
    #: parameters, and values computed from them alone
    WEIGHT = 1
    #: rows of parameters that are gathered, not yet met by anything else
    TABLE = 2
    #: computed from integers: angles, frequencies, slopes, buckets
    POSITION = 3
    ACTIVATION = 4


@dataclass(frozen=True)
class Info:
    """The properties of a float value.

    Attributes:
        half: an activation that is computed in 16 bits.
        statistic: a float32 reduction of an activation, for example the root of a mean square.
        size: elements of a parameter; 0 where it is none.
        large: it may hold values that only float32 can, because a constant in it does.
    """

    kind: Kind
    half: bool = False
    statistic: bool = False
    size: int = 0
    large: bool = False


#: parameters up to this size that are combined with positions are stored in float32, larger ones in 16 bits
SMALL = 1 << 14

#: these move what they get, and compute nothing
MOVES = frozenset(
    [
        "Reshape",
        "Transpose",
        "Slice",
        "Gather",
        "GatherElements",
        "GatherND",
        "Unsqueeze",
        "Squeeze",
        "Expand",
        "Identity",
        "Flatten",
        "Tile",
        "Split",
        "DepthToSpace",
        "SpaceToDepth",
        "Trilu",
        "Pad",
    ]
)
#: these choose among what they get, or round it once
CHOOSES = frozenset(("Where", "Concat", "Max", "Min", "ReduceMax", "ReduceMin", "DequantizeLinear"))
#: products and whole layers: their results have 16 bits wherever an activation or a large parameter takes part
LAYERS = frozenset(
    [
        "MatMul",
        "Gemm",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "LayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "BatchNormalization",
        "Attention",
        "RotaryEmbedding",
        "Gelu",
        "LSTM",
        "GRU",
        "RNN",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
        "FusedMatMul",
        "BiasGelu",
        "FastGelu",
        "QuickGelu",
    ]
)
#: reductions over a row
STATISTICS = frozenset(
    ["ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]
)
#: float32 even between activations: sums of many, what overflows 16 bits, what has no kernel in them anywhere
ISLANDS = STATISTICS | frozenset(
    ["Pow", "Sqrt", "Exp", "Log", "CumSum", "ScatterElements", "ScatterND", "Mod", "Range", "Resize", "LinearAttention"]
)
#: these take whatever type their operand has, and say nothing in it
INDIFFERENT = SIZES | {"Cast", "CastLike"}
#: of these a large constant bounds a result, or is compared with it
BOUNDS = COMPARISONS | {"Clip", "Min", "Max"}


def is_float_cast(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Cast", "CastLike")


#: the function that a node calls
Calls = dict[ir.Node, ir.Function]


def separate_calls(model: ir.Model) -> Calls:
    """Every call in the graph, in functions and in branches, with a copy of its function for this call alone."""
    calls: Calls = {}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            function = model.functions.get(node.op_identifier())
            if function is not None:
                calls[node] = function.clone()
                visit(calls[node])

    visit(model.graph)
    return calls


def merge_calls(model: ir.Model, calls: Calls) -> None:
    """Replaces the copies by one function for equal ones; different functions of one name are numbered."""
    unique: dict[bytes, ir.Function] = {}
    names: defaultdict[str, set[str]] = defaultdict(set)

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node not in calls:
                continue
            function = calls[node]
            visit(function)  # callees first: a body contains their names
            key = ir.to_proto(function).SerializeToString(deterministic=True)
            if key not in unique:
                function.name = claim(function.name, names[function.domain], between="")
                unique[key] = function
            node.op_type = unique[key].name

    visit(model.graph)
    model.functions.clear()
    for function in unique.values():
        model.functions[function.identifier()] = function


#: ``wide``: float32, to compute with activations; ``exact``: float32, because positions are computed from it
Need = Literal["half", "wide", "exact"]


@dataclass
class Flow:
    """The decisions about a program's values and nodes.

    Attributes:
        calls: the function of every call.
        kernels: which operators there are kernels for in 16 bits.
        types: element types before the change.
        info: of every float32 value.
        contents: integers that depend on tokens, not on their positions alone: what they index is an activation.
        needs: what the readers of a value need.
        half: values that have 16 bits in the end.
        node_half: for a node that computes, whether it does in 16 bits.
        islands: nodes of the functions of recurrences, whose state sums over all tokens: float32.
    """

    calls: Calls
    kernels: Kernels
    largest: float
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    info: dict[ir.Value, Info] = field(default_factory=dict)
    contents: set[ir.Value] = field(default_factory=set)
    needs: defaultdict[ir.Value, set[Need]] = field(default_factory=lambda: defaultdict(set))
    half: set[ir.Value] = field(default_factory=set)
    node_half: dict[ir.Node, bool] = field(default_factory=dict)
    islands: set[ir.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        recurrences = (body for body in self.calls.values() if body.name.endswith(RecurrenceSpec.op_type))
        self.islands = {node for body in recurrences for node in ir.traversal.RecursiveGraphIterator(body)}

    def floats(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        """Of the values those that are float32."""
        return [value for value in values if value is not None and value in self.info]

    def decide(self, value: ir.Value) -> bool:
        """Decides the type of a value by its readers; whether it has 16 bits."""
        info, needs = self.info.get(value), self.needs[value]
        if info is None:
            return False
        if needs == {"half"}:
            half = True
        elif info.kind in (Kind.WEIGHT, Kind.TABLE) and needs:
            half = "exact" not in needs or info.size > SMALL
        else:
            half = info.half
        self.put(value, half=half)
        return half

    def decide_all(self, outputs: Sequence[ir.Value]) -> bool:
        """Decides one type for all outputs of a node that only moves elements."""
        union = set().union(*(self.needs[value] for value in outputs))
        for value in outputs:
            self.needs[value] = set(union)
        decided = {self.decide(value) for value in outputs}
        return decided == {True}

    def put(self, value: ir.Value, *, half: bool) -> None:
        if half and value in self.info:
            self.half.add(value)
        else:
            self.half.discard(value)

    def need_of(self, value: ir.Value, half: bool) -> Need:
        """What ``value`` needs of the one that it is elsewhere."""
        if half:
            return "half"
        return "exact" if "exact" in self.needs[value] else "wide"


def data_inputs(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands that provide the elements of the result."""
    return node.inputs[:1] if node.op_type in MOVES or is_float_cast(node) else node.inputs

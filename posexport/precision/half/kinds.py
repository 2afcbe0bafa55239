"""What values are, and which operators compute in which type: the policy of half precision.

Positions, and all that is computed from them, stay float32 until they meet an activation. Reductions, powers and
running sums of activations are float32 islands. Weights and activations have 16 bits.
"""

from dataclasses import dataclass
from enum import IntEnum

import onnx_ir as ir

from posexport.graph.operators import COMPARISONS, SIZES


class Kind(IntEnum):
    """Where the numbers of a float value come from; of several operands the greatest."""

    #: numbers in the graph's text, and masks made of them
    CONSTANT = 0
    #: parameters, and what is computed from them alone
    WEIGHT = 1
    #: rows of parameters that are gathered, not yet met by anything else
    TABLE = 2
    #: computed from integers: angles, frequencies, slopes, buckets
    POSITION = 3
    ACTIVATION = 4


@dataclass(frozen=True)
class Info:
    """What is known of a float value.

    Attributes:
        half: an activation that is computed in 16 bits.
        statistic: a float32 reduction of an activation, such as the root of a mean square.
        size: elements of a parameter; 0 where it is none.
        large: it may hold values that only float32 can, because a constant in it does.
    """

    kind: Kind
    half: bool = False
    statistic: bool = False
    size: int = 0
    large: bool = False


#: parameters of at most so many elements that positions meet are stored in float32, larger ones in 16 bits
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
#: these choose among what they get
CHOOSES = frozenset(("Where", "Concat", "Max", "Min", "ReduceMax", "ReduceMin"))
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
#: reductions, whose results say something about all of a row
STATISTICS = frozenset(
    ["ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]
)
#: float32 even between activations: sums of many, what overflows 16 bits, what has no kernel in them anywhere
ISLANDS = STATISTICS | frozenset(
    ["Pow", "Sqrt", "Exp", "Log", "CumSum", "ScatterElements", "ScatterND", "Mod", "Range", "Resize"]
)
#: these take whatever type their operand has, and say nothing in it
INDIFFERENT = SIZES | {"Cast", "CastLike"}
#: of these a large constant bounds a result, or is compared with it
BOUNDS = COMPARISONS | {"Clip", "Min", "Max"}


def is_float_cast(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in ("Cast", "CastLike")

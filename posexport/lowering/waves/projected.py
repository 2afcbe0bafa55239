"""The waves of a call's own distances, and their product with the map."""

from collections.abc import Mapping

from posexport.ops.waves import WavesKind
from posexport.targets.target import Target


class Projected:
    """Standard operators of any opset: an outer product, sine, cosine, and a product with the weight."""

    name = "projected"
    cuts = False
    joins = False
    beaten = "it projects the distances anew in every call"

    def domains(self, kind: WavesKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: WavesKind, target: Target) -> str | None:
        """Applies to every kind."""
        del kind, target
        return None

    def body(self, kind: WavesKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        return "\n".join([*CONSTANTS, *projected(kind, "distances", "vectors")])


#: statements that give what `projected` takes beside the distances
CONSTANTS = [
    "start = Constant<value_ints = [0]>()",
    "last = Constant<value_ints = [-1]>()",
    "channels = Shape<start = 1, end = 2>(weight)",
    "map = Transpose<perm = [1, 0]>(weight)",
    "head_shape = Constant<value_ints: ints = @by_head>()",
]


def projected(kind: WavesKind, distances: str, to: str) -> list[str]:
    """Statements that give ``to``, [H, W, D], of the value named ``distances``, int64 [W]."""
    both = ["both = Concat<axis = -1>(sines, cosines)"]
    if kind.layout == "interleaved":
        both = [
            "sine_of_pair = Unsqueeze(sines, last)",
            "cosine_of_pair = Unsqueeze(cosines, last)",
            "pairs = Concat<axis = -1>(sine_of_pair, cosine_of_pair)",
            "flat = Constant<value_ints = [0, -1]>()",
            "both = Reshape(pairs, flat)",
        ]
    return [
        f"wide = CastLike({distances}, frequencies)",
        "column = Unsqueeze(wide, last)",
        "angle = Mul(column, frequencies)",
        "sines = Sin(angle)",
        "cosines = Cos(angle)",
        *both,
        # an odd number of channels has one sine more
        "cut = Slice(both, start, channels, last)",
        "waves = CastLike(cut, weight)",
        # one product for all heads: its second factor is a matrix, which runtimes pack once
        "rows = MatMul(waves, map)",
        "apart = Reshape(rows, head_shape)",
        f"{to} = Transpose<perm = [1, 0, 2]>(apart)",
    ]

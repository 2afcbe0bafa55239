"""The waves of a call's own distances, and their product with the map."""

from collections.abc import Mapping

from posexport.lowering.target import Target
from posexport.ops.waves import WavesKind


class Projected:
    """Standard operators of any opset: an outer product, sine, cosine, and a product with the weight."""

    name = "projected"
    scans = False
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
    """Statements that give ``to``, [H, W, D], of the value named ``distances``, int64 [W]; no name stands in two."""
    both = [f"{to}_both = Concat<axis = -1>({to}_sines, {to}_cosines)"]
    if kind.layout == "interleaved":
        both = [
            f"{to}_sine = Unsqueeze({to}_sines, last)",
            f"{to}_cosine = Unsqueeze({to}_cosines, last)",
            f"{to}_pairs = Concat<axis = -1>({to}_sine, {to}_cosine)",
            f"{to}_flat = Constant<value_ints = [0, -1]>()",
            f"{to}_both = Reshape({to}_pairs, {to}_flat)",
        ]
    return [
        f"{to}_wide = CastLike({distances}, frequencies)",
        f"{to}_column = Unsqueeze({to}_wide, last)",
        f"{to}_angle = Mul({to}_column, frequencies)",
        f"{to}_sines = Sin({to}_angle)",
        f"{to}_cosines = Cos({to}_angle)",
        *both,
        # an odd number of channels has one sine more
        f"{to}_cut = Slice({to}_both, start, channels, last)",
        f"{to}_waves = CastLike({to}_cut, weight)",
        f"{to}_rows = MatMul({to}_waves, map)",
        f"{to}_apart = Reshape({to}_rows, head_shape)",
        f"{to} = Transpose<perm = [1, 0, 2]>({to}_apart)",
    ]

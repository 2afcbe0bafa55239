"""Rotation as the formula has it, in products and sums of the pairs' first and second channels."""

from collections.abc import Mapping

from posexport.ops.rotation import RotationKind
from posexport.targets.target import Target


class Turned:
    """``a cos - b sin`` and ``b cos + a sin``: standard operators of any opset."""

    name = "turned"
    cuts = False
    joins = False
    beaten = "it passes several times over queries and keys where one operator passes once"

    def domains(self, kind: RotationKind, target: Target) -> Mapping[str, int]:
        """Standard operators only."""
        del kind, target
        return {}

    def refusal(self, kind: RotationKind, target: Target) -> str | None:
        """Applies to every kind."""
        del kind, target
        return None

    def body(self, kind: RotationKind, target: Target) -> str:
        """The statements, in the ONNX text format."""
        del target
        lines = ["wide = CastLike(x, cos)"]
        if kind.partial:
            lines.append("parts = Constant<value_ints: ints = @parts>()")
        if kind.layout == "half":
            split = "first, second, rest = Split<axis = -1>(wide, parts)"
            lines.append(split if kind.partial else "first, second = Split<axis = -1, num_outputs = 2>(wide)")
        else:
            turning = "wide"
            if kind.partial:
                lines.append("turning, rest = Split<axis = -1>(wide, parts)")
                turning = "turning"
            # channels of a pair on an axis of their own: cheaper than slices with steps, or Gather
            lines += [
                "by_pair = Constant<value_ints = [0, 0, 0, -1, 2]>()",
                f"pairs = Reshape({turning}, by_pair)",
                "first, second = Split<axis = -1, num_outputs = 2>(pairs)",
                "last = Constant<value_ints = [-1]>()",
                "pair_cos = Unsqueeze(cos, last)",
                "pair_sin = Unsqueeze(sin, last)",
            ]
        cos, sin = ("cos", "sin") if kind.layout == "half" else ("pair_cos", "pair_sin")
        lines += [
            f"first_cos = Mul(first, {cos})",
            f"second_sin = Mul(second, {sin})",
            f"second_cos = Mul(second, {cos})",
            f"first_sin = Mul(first, {sin})",
            "real = Sub(first_cos, second_sin)",
            "imaginary = Add(second_cos, first_sin)",
        ]
        if kind.layout == "half":
            lines.append(f"all = Concat<axis = -1>(real, imaginary{', rest' * kind.partial})")
        else:
            lines += [
                "both = Concat<axis = -1>(real, imaginary)",
                "by_head = Constant<value_ints = [0, 0, 0, -1]>()",
                f"{'joined' if kind.partial else 'all'} = Reshape(both, by_head)",
            ]
            lines += ["all = Concat<axis = -1>(joined, rest)"] * kind.partial
        return "\n".join([*lines, "turned = CastLike(all, x)"])

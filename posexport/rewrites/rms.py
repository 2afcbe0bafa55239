"""Root mean square normalisation as one operator (RMSNormalization, opset 23).

Zhang and Sennrich (arXiv:1910.07467), equation 4, as `posexport.nn.norms` writes it: divided by the root.
"""

from typing import Any

import onnx_ir as ir

from posexport.graph.queries import constant, is_near, number, width
from posexport.rewrites.rewrite import by_rules
from posexport.targets.target import ATTENTION_OPSET, Target


class RmsNorm:
    """The formula of float32 to one node, whose kernel ONNX Runtime's own fusion takes too."""

    name = "rms-norm"

    def refusal(self, target: Target) -> str | None:
        """Before opset 23 there is no standard operator; ONNX Runtime fuses the formula when it loads the graph."""
        return target.needs(ATTENTION_OPSET, "RMSNormalization")

    def beaten(self, target: Target) -> str | None:
        """Never: the same kernel, and five nodes less."""
        del target
        return None

    def apply(self, model: ir.Model, target: Target) -> int:
        """How many."""
        del target

        def formula(op: Any, x: Any, two: Any, axes: Any, epsilon: Any, scale: Any) -> Any:
            mean = op.ReduceMean(op.Pow(x, two), axes, keepdims=1)
            return op.Mul(op.Div(x, op.Sqrt(op.Add(mean, epsilon))), scale)

        def applies(x: ir.Value, two: ir.Value, axes: ir.Value, epsilon: ir.Value, scale: ir.Value, **_: Any) -> bool:
            last = constant(axes)
            rank = None if x.shape is None else len(x.shape)
            return (
                x.dtype == scale.dtype == ir.DataType.FLOAT
                and is_near(two, 2)
                and number(epsilon) is not None
                and last is not None
                and last.tolist() in ([-1], [(rank or 0) - 1])
                and scale.shape is not None
                and len(scale.shape) == 1
                and width(scale) == width(x) is not None
            )

        def fused(op: Any, x: Any, epsilon: Any, scale: Any, **_: Any) -> Any:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=number(epsilon), stash_type=1)

        return by_rules({"rms-norm": (formula, fused, applies)}, model)

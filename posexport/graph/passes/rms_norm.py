"""Root mean square normalisation as one operator (RMSNormalization, opset 23).

Zhang and Sennrich (arXiv:1910.07467), equation 4, as `posexport.nn.norms` writes it: divided by the root.
"""

from typing import Any

import onnx_ir as ir

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import ATTENTION_OPSET, Target
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult, Rule, by_rules
from posexport.graph.queries import constant, is_near, number, width


class RmsNorm(GraphPass):
    """Five nodes as one, with the kernel that ONNX Runtime's fusion uses.

    Before: ``Mul(Div(x, Sqrt(Add(ReduceMean(Pow(x, 2), -1), eps))), scale)``
    After:  ``RMSNormalization(x, scale)``

    Before opset 23 there is no standard operator; ONNX Runtime fuses the formula when it loads the graph.
    """

    name = "rms-norm"
    description = "root mean square normalisation as one RMSNormalization"

    def refusal(self, target: Target) -> str | None:
        return target.needs(ATTENTION_OPSET, "RMSNormalization")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        dtype = ir.DataType[MODEL_DTYPE.onnx]

        def formula(op: Any, x: Any, two: Any, axes: Any, epsilon: Any, scale: Any) -> Any:
            mean = op.ReduceMean(op.Pow(x, two), axes, keepdims=1)
            return op.Mul(op.Div(x, op.Sqrt(op.Add(mean, epsilon))), scale)

        def fused(op: Any, x: Any, epsilon: Any, scale: Any, **_: Any) -> Any:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=number(epsilon), stash_type=1)

        def refusal(x: ir.Value, **values: ir.Value) -> str | None:
            return _refusal(x=x, **values) if x.dtype == dtype else f"it is not {MODEL_DTYPE.name}"

        return by_rules({"rms-norm": Rule(formula, fused, refusal)}, model)


def _refusal(
    x: ir.Value, two: ir.Value, axes: ir.Value, epsilon: ir.Value, scale: ir.Value, **_: ir.Value
) -> str | None:
    last = constant(axes)
    rank = None if x.shape is None else len(x.shape)
    if not is_near(two, 2) or number(epsilon) is None:
        return "its exponent is not 2, or its epsilon is no constant"
    if last is None or last.tolist() not in ([-1], [(rank or 0) - 1]):
        return "the mean is not over the last axis"
    if (
        scale.dtype != x.dtype
        or scale.shape is None
        or len(scale.shape) != 1
        or not width(scale) == width(x) is not None
    ):
        return "its scale is not one value for every channel"
    return None

"""Activation functions that the tracer takes apart, as one operator each.

`Gelu`: Hendrycks and Gimpel (arXiv:1606.08415), by the error function or its tanh approximation. `Swish`: SiLU,
x * sigmoid(x) (Ramachandran et al., arXiv:1710.05941). `Softplus`: log(1 + exp(x)).
"""

import math
from typing import Any

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult, Rule, by_rules
from posexport.graph.queries import is_near, number
from posexport.graph.types import infer

#: the first opset with Gelu, which the tracer writes itself from there on
GELU_OPSET = 20
_ROOT_2, _ROOT_2_PI = math.sqrt(2), math.sqrt(2 / math.pi)
_SOFTPLUS_IS_X = 17
_OTHER_CONSTANTS = "its constants are not those of Gelu"


class Gelu(GraphPass):
    """The formulas to one node; for standard operators before opset 20 to the order that ONNX Runtime knows.

    Before: ``Mul(x, Mul(0.5, Add(Erf(Div(x, sqrt 2)), 1)))``
    After:  ``com.microsoft::Gelu(x)``, or ``Mul(Mul(x, Add(Erf(Div(x, sqrt 2)), 1)), 0.5)``

    The tracer multiplies one plus the error function by a half and then by x, which ONNX Runtime does not recognise;
    multiplying by the half last gives the same values.
    """

    name = "gelu"
    description = "Gelu and its tanh approximation as one operator, or in the order that ONNX Runtime fuses"

    def refusal(self, target: Target) -> str | None:
        return None if target.opset < GELU_OPSET else f"opset {target.opset} has Gelu, which the tracer writes"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        # patterns: the exact Gelu, and its tanh approximation
        def by_erf(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
            return op.Mul(x, op.Mul(half, op.Add(op.Erf(op.Div(x, root)), one)))

        def by_tanh(op: Any, x: Any, three: Any, cubic: Any, root: Any, one: Any, half: Any) -> Any:
            inner = op.Mul(root, op.Add(x, op.Mul(cubic, op.Pow(x, three))))
            return op.Mul(x, op.Mul(half, op.Add(op.Tanh(inner), one)))

        def erf_refusal(root: ir.Value, one: ir.Value, half: ir.Value, **_: ir.Value) -> str | None:
            near = is_near(root, _ROOT_2) and is_near(one, 1) and is_near(half, 0.5)
            return None if near else _OTHER_CONSTANTS

        def tanh_refusal(three: ir.Value, cubic: ir.Value, root: ir.Value, **rest: ir.Value) -> str | None:
            inner = is_near(three, 3) and is_near(cubic, 0.044715) and is_near(root, _ROOT_2_PI)
            near = inner and is_near(rest["one"], 1) and is_near(rest["half"], 0.5)
            return None if near else _OTHER_CONSTANTS

        def fused(op: Any, x: Any, **_: Any) -> Any:
            return op.Gelu(x, _domain=MICROSOFT)

        def fused_tanh(op: Any, x: Any, **_: Any) -> Any:
            return op.FastGelu(x, _domain=MICROSOFT)

        def half_last(op: Any, x: Any, root: Any, one: Any, half: Any) -> Any:
            return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, root)), one)), half)

        rules = {"gelu": Rule(by_erf, fused if context.target.microsoft else half_last, erf_refusal)}
        if context.target.microsoft:
            rules["tanh-gelu"] = Rule(by_tanh, fused_tanh, tanh_refusal)
        result = by_rules(rules, model)
        if result.nodes:
            _infer_missing(model)
        return result


def _infer_missing(model: ir.Model) -> None:
    """Types and shapes of inner values, which the rewriter leaves out and `FlatTokens` needs."""
    for node in model.graph:
        if any(value.type is None for value in node.outputs):
            infer(node, model.opset_imports[""])


class Swish(GraphPass):
    """SiLU as com.microsoft QuickGelu, which has any factor before the sigmoid's argument.

    Before: ``Mul(x, Sigmoid(x))``
    After:  ``com.microsoft::QuickGelu(x, alpha=1)``

    ai.onnx Swish of opset 24 takes twice as long on the CPU (onnxruntime 1.31).
    """

    name = "swish"
    description = "SiLU as one com.microsoft QuickGelu"

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("QuickGelu")

    def apply(self, model: ir.Model, context: Context) -> PassResult:

        def formula(op: Any, x: Any) -> Any:
            return op.Mul(x, op.Sigmoid(x))

        def fused(op: Any, x: Any) -> Any:
            return op.QuickGelu(x, alpha=1.0, _domain=MICROSOFT)

        return by_rules({"swish": Rule(formula, fused, lambda **_: None)}, model)


class Softplus(GraphPass):
    """PyTorch's softplus, which is x itself above a threshold (20), without that test.

    Before: ``Where(Greater(x, 20), x, Softplus(x))``
    After:  ``Softplus(x)``

    In float32 both are equal: above `_SOFTPLUS_IS_X` log(1 + exp(-x)) is less than half of the last bit of x, and ONNX
    Runtime adds that to x. Other runtimes may compute exp(x), which overflows.
    """

    name = "softplus"
    description = "PyTorch's softplus without its threshold"
    is_listed_idle = False

    def concerns(self, context: Context) -> bool:
        return context.target.microsoft

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        def formula(op: Any, x: Any, threshold: Any) -> Any:
            return op.Where(op.Greater(x, threshold), x, op.Softplus(x))

        def refusal(threshold: ir.Value, **_: ir.Value) -> str | None:
            above = number(threshold)
            return None if above is not None and above >= _SOFTPLUS_IS_X else "its threshold is lower"

        return by_rules({"softplus": Rule(formula, lambda op, x, **_: op.Softplus(x), refusal)}, model)


class BiasGelu(GraphPass):
    """The bias before a Gelu, by onnxscript's rule; biases before the tanh approximation stay.

    Before: ``com.microsoft::Gelu(Add(x, bias))``
    After:  ``com.microsoft::BiasGelu(x, bias)``
    """

    name = "bias-gelu"
    description = "the bias of the linear projection before a Gelu as part of it"

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft("BiasGelu")

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        from onnxscript.rewriter.ort_fusions.bias_gelu import fuse_bias_gelu

        return PassResult(int(fuse_bias_gelu(model)))

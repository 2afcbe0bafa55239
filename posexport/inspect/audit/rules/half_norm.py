"""PX302: a norm of several nodes in float16: its square overflows."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.queries import producer
from posexport.inspect.audit.analyses.scalars import element
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: 256 * 256 is the first square beyond float16's 65,504
_LARGEST = 255.9


def _check(subject: Subject) -> Iterator[Place]:
    for node in subject.nodes:
        if node.op_type not in ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2") or node.domain:
            continue
        squared = node.inputs[0]
        x = squared if node.op_type in ("ReduceSumSquare", "ReduceL2") else _root(squared)
        if x is None or x.dtype != ir.DataType.FLOAT16 or _is_small(x):
            continue
        step = node if squared is None or x is squared else squared.producer()
        yield Place(
            f"the norm of {x.name!r} squares it in float16: above 255 it is infinite, and the output 0 or NaN",
            [step, node] if step is not None and step is not node else [node],
        )


def _root(value: ir.Value | None) -> ir.Value | None:
    """The value that is squared, by x * x or x ** 2."""
    if (node := producer(value, "Mul")) is not None and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    if (node := producer(value, "Pow")) is not None and element(node.inputs[1], lambda _: None) == 2.0:
        return node.inputs[0]
    return None


def _is_small(x: ir.Value) -> bool:
    """Whether a Clip, or a division before the square, keeps ``x`` below the largest root."""
    if (node := producer(x, "Clip")) is not None and len(node.inputs) > 2:
        most = element(node.inputs[2], lambda _: None)
        return most is not None and most <= _LARGEST
    step = x.producer()
    if step is None or step.op_type not in ("Mul", "Div"):
        return step is not None and step.op_type in ("Softmax", "Sigmoid", "Tanh")
    factors = [factor for value in step.inputs if (factor := element(value, lambda _: None)) is not None]
    return any(abs(factor) < 1 if step.op_type == "Mul" else abs(factor) > 1 for factor in factors)


RULE = Rule(
    code="PX302",
    name="half-norm",
    severity="warning",
    finds="a norm written out in float16, whose squares overflow above 255",
    why="Residual streams of decoders reach thousands in some channels: the mean of squares is infinite, the output 0 "
    "or NaN, for some texts only.",
    remedy="Keep norms in float32: block Pow, ReduceMean, Sqrt and Div in the converter, or use an operator that "
    "computes in float32 (LayerNormalization, SimplifiedLayerNormalization); posexport convert --precision fp16 does.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        overflows (float16[B, T, D] x, float16[1] epsilon) => (float16[B, T, D] y)
        <int64[1] last = {-1}>
        {
            squares = Mul (x, x)
            mean = ReduceMean (squares, last)
            safe = Add (mean, epsilon)
            root = Sqrt (safe)
            y = Div (x, root)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        wide (float16[B, T, D] x) => (float16[B, T, D] y)
        <int64[1] last = {-1}, float epsilon = {0.00001}>
        {
            single = Cast <to = 1> (x)
            squares = Mul (single, single)
            mean = ReduceMean (squares, last)
            safe = Add (mean, epsilon)
            root = Sqrt (safe)
            normed = Div (single, root)
            y = Cast <to = 10> (normed)
        }
    """,
)

"""PX302: the square, mean and root of a norm are computed in float32."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.queries import only
from posexport.inspect.audit.repairs.repair import Repair
from posexport.inspect.audit.repairs.wider import in_float32, replace_by_cast
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject

#: operators between the sum of squares and the factor that the norm multiplies by
_AFTER = frozenset(["Add", "Sqrt", "Reciprocal", "Max", "Clip", "Pow"])
_SQUARES = frozenset(["Mul", "Pow", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"])


def _apply(_subject: Subject, place: Place) -> list[ir.Value]:
    """The chain from the square to the root is written again.

    Before: ``Div(x, Sqrt(Add(ReduceMean(Mul(x, x)), epsilon)))``
    After:  ``Div(x, Cast(Sqrt(Add(ReduceMean(Mul(x32, x32)), epsilon)), float16)), x32 = Cast(x, float32)``
    """
    reduction = place.nodes[-1]
    assert isinstance(reduction, ir.Node)
    chain, value = [reduction], reduction.outputs[0]
    while (user := only(value)) is not None and user.op_type in _AFTER and not user.domain:
        chain.append(user)
        value = user.outputs[0]
    x = _squared(reduction)
    g = Builder.at(chain[-1], after=True, name=f"{value.name}_float32")
    known = {x: g.Cast(x, to=ir.DataType.FLOAT)}
    wide = in_float32(g, value, _AFTER | _SQUARES, exact=False, known=known)
    return [replace_by_cast(g, value, wide)]


def _squared(reduction: ir.Node) -> ir.Value:
    """What is squared: the reduction's input, or the operand of the square in front of it."""
    value = reduction.inputs[0]
    square = None if value is None else value.producer()
    if reduction.op_type in ("ReduceMean", "ReduceSum") and square is not None:
        value = square.inputs[0]
    assert value is not None
    return value


REPAIR = Repair(does="squares, mean and root of the norm are computed in float32", apply=_apply)

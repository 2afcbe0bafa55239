"""PX301: rotary angles are computed in float32, their cosines and sines are cast."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.repairs.wider import in_float32, replace_by_cast
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject

#: operators from positions to angles
_THROUGH = frozenset(
    ["Mul", "MatMul", "Add", "Sub", "Div", "Neg", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Concat", "Expand"]
)


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """The operators between positions and angles are written again.

    Before: ``Cos(Mul(Cast(positions, float16), Cast(frequencies, float16)))``
    After:  ``Cast(Cos(Mul(Cast(positions, float32), frequencies)), float16)``
    """
    first = place.nodes[0]
    if not isinstance(first, ir.Node) or first.op_type not in ("Cos", "Sin") or first.inputs[0] is None:
        raise NotRepairedError("positions in half precision that are no angles are the model's own arithmetic")
    angles = first.inputs[0]
    changed: list[ir.Value] = []
    known: dict[ir.Value, ir.Value] = {}
    # cosines and sines of the same angles are one place
    for node in [user for user in subject.nodes if user.op_type in ("Cos", "Sin") and user.inputs[0] is angles]:
        g = Builder.at(node, name=f"{node.outputs[0].name}_float32")
        wide = g.op(node.op_type, in_float32(g, angles, _THROUGH, exact=True, known=known))
        changed.append(replace_by_cast(g, node.outputs[0], wide))
    return changed


REPAIR = Repair(does="rotary angles are computed in float32", apply=_apply)

"""Give the nodes of domain ``posexport`` their meaning: attach a function for each kind, bodies in standard operators.

Attached last, because optimisers and version converters inline or drop functions, and with the model's own opset, which
the checker asks for.
"""

import onnx
import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.lowering import plan
from posexport.lowering.base import function
from posexport.ops.attention import kinds
from posexport.ops.base import DOMAIN, OPERATORS


def attach(model: ir.Model, lowering: str = "auto", *, flat: bool = False) -> dict[str, str]:
    """Attach the functions of all nodes of our domain; answers which lowering each attention function got.

    ``flat``: they will be inlined, for runtimes that know no Scan either.

    Raises:
        PosexportError: ``lowering`` does not apply to a kind of attention in the graph (the reason is in the message).
    """
    opset = model.opset_imports[""]
    attention = kinds()
    chosen: dict[str, str] = {}
    needed: dict[str, onnx.FunctionProto] = {}
    for name in dict.fromkeys(
        node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain == DOMAIN
    ):
        if name in attention:
            way = plan.choose(attention[name], lowering, flat=flat)
            chosen[name] = way.name
            for operator in attention[name].operators.values():
                needed.setdefault(operator.name, _operator(operator.name, opset))
            needed[name] = function(way, attention[name], opset)
        elif name in OPERATORS:
            needed.setdefault(name, _operator(name, opset))
        else:
            raise PosexportError(f"node type {DOMAIN}::{name} is unknown; known: {', '.join([*OPERATORS, *attention])}")
    # operators first: ONNX's reference evaluator wants a callee before its caller
    for name in sorted(needed, key=lambda name: name in attention):
        proto = ir.serde.deserialize_function(needed[name])
        model.functions[proto.identifier()] = proto
    if needed:
        model.opset_imports[DOMAIN] = 1
    else:
        model.opset_imports.pop(DOMAIN, None)
    return chosen


def _operator(name: str, opset: int) -> onnx.FunctionProto:
    proto: onnx.FunctionProto = OPERATORS[name].function.to_function_proto()
    for entry in proto.opset_import:
        if not entry.domain:
            entry.version = opset
    return proto

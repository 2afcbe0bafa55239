"""The same graph without functions, for runtimes that know none (OpenVINO and others)."""

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass, ShapeInferencePass

from posexport.base.spec import DOMAIN, FUNCTION
from posexport.graph.builder import Builder
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import bodies


class Inline(GraphPass):
    """Every call of a function becomes its body.

    Before: ``posexport::Attention(q, k, v)``
    After:  ``MatMul, Softmax, MatMul ..``; a CastLike becomes a Cast, as types are known now

    Nodes that stood in a function of ours say so, for `posexport explain`.
    """

    name = "inline"
    description = "calls of functions as their bodies (--inline)"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        return context.target.flat

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts calls."""
        calls = sum(node.op_identifier() in model.functions for node in model.graph.all_nodes())
        for function in model.functions.values():
            for node in ir.traversal.RecursiveGraphIterator(function.graph):
                node.metadata_props[FUNCTION] = function.name
        InlinePass()(model)
        if any(map(bodies, model.graph)):
            # InlinePass does not look for names in the branches of an If
            NameFixPass()(model)
        model.opset_imports.pop(DOMAIN, None)
        _cast_to_types(model)
        return PassResult(calls)


def _cast_to_types(model: ir.Model) -> None:
    """Casts to the type of another value, which a function needs and a graph does not: to the type, or not at all.

    ONNX Runtime has no kernel for them and warns, at every session, of each that it cannot compute beforehand.
    """
    ends = [(end, end.shape) for end in (*model.graph.inputs, *model.graph.outputs)]
    ShapeInferencePass()(model)
    for end, shape in ends:
        end.shape = shape  # with the names of its axes
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "CastLike" or node.domain:
            continue
        value, like, output = node.inputs[0], node.inputs[1], node.outputs[0]
        if value is None or like is None or value.dtype is None or like.dtype is None or output.is_graph_output():
            continue
        assert node.graph is not None
        if value.dtype == like.dtype:
            by = value
        else:
            by = Builder.at(node, opset=model.opset_imports[""]).Cast(value, to=like.dtype)
            by.name, output.name = output.name, None
        ir.convenience.replace_all_uses_with(output, by)
        node.graph.remove(node, safe=True)

"""The logarithm of a sigmoid, as accurate near 0 as near 1.

Detectors refine boxes by sigmoid(logit(box) + change) in every layer (Deformable DETR, arXiv:2010.04159, section 4.2).
ONNX Runtime's CPU kernel of Sigmoid (1.32) is right to 1.3e-7 of 1, whatever the value: sigmoid(-9) is off by 9e-4 of
itself, and its logarithm, so the next box, by as much. 1 / (1 + exp(-x)) is off by a few eps of itself.
"""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.single_row import ELEMENTWISE

#: operators that move elements without a change
_MOVES = {"Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Split", "Squeeze"}
_PASSED = ELEMENTWISE | _MOVES | {"Tile", "TopK", "Transpose", "Unsqueeze"}


class LogOfSigmoid(GraphPass):
    """Sigmoid by Exp, where its elements or elementwise functions of them reach a Log.

    Before: ``Log(Clip(Sigmoid(x)))``
    After:  ``Log(Clip(Reciprocal(Add(Exp(Neg(x)), 1))))``

    Other sigmoids, for example gates, stay: their absolute error counts.
    """

    name = "log-of-sigmoid"
    description = "sigmoids whose logarithm is taken by Exp, which is accurate near 0"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts sigmoids."""
        nodes = [node for node in _behind_logs(model.graph) if node.op_type == "Sigmoid" and not node.domain]
        for node in nodes:
            g = Builder.at(node, like=[node])
            replace(node.outputs[0], g.Reciprocal(g.Add(g.Exp(g.Neg(node.inputs[0])), 1.0)))
            model.graph.remove(node, safe=True)
        return PassResult(len(nodes))


def _behind_logs(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node between a Log and the operators that mix elements, once, back from the Log."""
    todo = [node for node in graph if node.op_type == "Log" and not node.domain]
    seen = set(todo)
    while todo:
        for value in todo.pop().inputs:
            node = value.producer() if value is not None else None
            if node is None or node in seen or node.domain or node.op_type not in _PASSED:
                continue
            seen.add(node)
            todo.append(node)
            yield node

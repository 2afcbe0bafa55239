"""Logits of a head that is tied to the word embeddings, by the embedding matrix as it is stored.

Press and Wolf, arXiv:1608.05859. ONNX Runtime computes the transposed matrix while it opens the graph, and keeps both.
"""

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import is_weight, producer

FUSED = "FusedMatMul"


class TiedHead(GraphPass):
    """A product with a transposed weight as one node.

    Before: ``MatMul(x, Transpose(w))``, ``Gemm(x, Transpose(w), bias)``
    After:  ``com.microsoft::FusedMatMul(x, w, transB=1)``, ``Gemm(x, w, bias, transB=1)``

    Opening a float32 Llama of a billion weights with 2,048 x 128,256 embeddings takes 0.53 of the processor time and
    leaves 1 GB out; its steps take as long (onnxruntime 1.31, one thread).
    """

    name = "tied-head"
    description = "tied heads by the embeddings as they are stored"
    phase = "device"
    is_listed_idle = False

    def refusal(self, target: Target) -> str | None:
        return target.needs_microsoft(FUSED) or target.needs_kernel(FUSED, MICROSOFT)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts products."""
        count = 0
        for node in list(model.graph.all_nodes()):
            if node.domain or node.op_type not in ("MatMul", "Gemm"):
                continue
            moved = producer(node.inputs[1], "Transpose")
            weight = None if moved is None else moved.inputs[0]
            if moved is None or weight is None or not _is_matrix_turned(moved):
                continue
            if node.op_type == "Gemm":
                node.replace_input_with(1, weight)
                node.attributes.add(ir.AttrInt64("transB", 1 - node.attributes.get_int("transB", 0)))
            else:
                g = Builder.at(node, like=[node])
                replace(node.outputs[0], g.op(FUSED, node.inputs[0], weight, domain=MICROSOFT, transB=1))
                assert isinstance(node.graph, ir.Graph)
                node.graph.remove(node, safe=True)
            count += 1
        return PassResult(count)


def _is_matrix_turned(transpose: ir.Node) -> bool:
    """Whether it exchanges the axes of a matrix of real numbers that the graph stores."""
    (weight,) = transpose.inputs
    real = weight is not None and weight.dtype is not None and weight.dtype.is_floating_point()
    return real and is_weight(weight, 2) and [*transpose.attributes.get_ints("perm", (1, 0))] == [1, 0]

"""A weight that the graph splits, as the parts: ``in_proj_weight.chunk(3)`` of `nn.MultiheadAttention`, for one.

PyTorch's exporter folds the transposition of a whole weight, and leaves this to every run. Passes for linear
projections look for weights, not for values computed from them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.edits import initializer
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import FOLDED_FROM, is_weight, names_of, sizes


class SplitWeights(GraphPass):
    """The parts of a weight as weights.

    Before: ``MatMul(x, Transpose(Split(in_proj_weight)[0]))``
    After:  ``MatMul(x, in_proj_weight_0)``

    Weights are split when the file is written, so that no second copy of all is in memory.
    """

    name = "split-weights"
    description = "the parts of a weight that is split in the graph as weights"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts weights."""
        splits = [node for node in model.graph if node.op_type == "Split" and not node.domain and _weight(node)]
        reasons = [_refusal(node) for node in splits]
        for node, reason in zip(splits, reasons, strict=True):
            if reason is None:
                _split(model.graph, node)
        return PassResult.of(reasons)


def _weight(node: ir.Node) -> bool:
    return any(is_weight(node.inputs[0], rank) for rank in (1, 2))


def _refusal(node: ir.Node) -> str | None:
    weight = node.inputs[0]
    if weight is None or len(list(weight.uses())) > 1:
        return "a weight is read elsewhere too and would be stored twice"
    return None if all(sizes(output) is not None for output in node.outputs) else "the sizes of its parts are not known"


def _split(graph: ir.Graph, node: ir.Node) -> None:
    along, start = node.attributes.get_int("axis", 0) or 0, 0
    for number, output in enumerate(node.outputs):
        shape = sizes(output) or ()
        end = start + int(shape[along])
        place = (slice(None),) * along + (slice(start, end),)
        start = end
        for user in {user for user, _ in output.uses() if user.op_type == "Transpose" and not user.domain}:
            order = list(user.attributes.get_ints("perm") or range(len(shape))[::-1])
            _stored(graph, node, user.outputs[0], number, _selection(place, order))
        _stored(graph, node, output, number, _selection(place, range(len(shape))))


def _selection(place: tuple[slice, ...], order: Sequence[int]) -> Callable[[NDArray[np.generic]], NDArray[np.generic]]:
    def taken(weight: NDArray[np.generic]) -> NDArray[np.generic]:
        return weight[place].transpose(order)

    return taken


def _stored(
    graph: ir.Graph,
    node: ir.Node,
    old: ir.Value,
    number: int,
    taken: Callable[[NDArray[np.generic]], NDArray[np.generic]],
) -> None:
    """Replace ``old``, an output of the Split ``node``, by an initialiser."""
    weight = node.inputs[0]
    if weight is None or weight.const_value is None or not any(user.op_type != "Transpose" for user, _ in old.uses()):
        return
    tensor = weight.const_value

    def selected() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(taken(np.asarray(tensor.numpy()))))

    value = initializer(
        graph, f"{weight.name}_{number}", ir.LazyTensor(selected, tensor.dtype, ir.Shape(sizes(old) or ()))
    )
    value.metadata_props[FOLDED_FROM] = repr(list(names_of(weight)))
    ir.convenience.replace_all_uses_with(old, value)

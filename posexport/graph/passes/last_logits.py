"""The logits of the last tokens alone, where a call asks for them.

Generation reads the last token's logits only. Of all tokens of a prompt they take the most memory of a call, and in
small models the most time: 1,500 tokens and a vocabulary of 262,144 are 1.5 GB. The input has the name and the meaning
that transformers.js and other exporters have for it, and a default, so that clients that do not know it get all logits.
"""

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.base.spec import LOGITS, NUM_LOGITS, is_cache_output
from posexport.graph.builder import Builder
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.passes.token_regions import acts_on_channels, read_by_token, token_axes
from posexport.graph.queries import only, width

#: further operators that compute each token alone
_BY_TOKEN = ("Cast", "Where")
_LAST = np.iinfo(np.int64).max
#: the name of the axis of tokens that have logits
_KEPT = "num_logits"


class LastLogits(GraphPass):
    """Tokens are selected between the last layer and the projection to the vocabulary.

    Before: ``x [B, T, C] -> MatMul(.., head) -> .. -> logits [B, T, V]``
    After:  ``Slice(x, -num_logits_to_keep) [B, N, C] -> MatMul(.., head) -> .. -> logits [B, N, V]``

    ``num_logits_to_keep``: the number N of the last tokens, int64; its default 0 is all. The first linear projection
    counts after which every node computes each token alone: a head may have several, and activations, norms, biases
    and soft-capping between and after them.
    """

    name = "last-logits"
    description = "an input with a default, num_logits_to_keep: the logits of the last tokens alone"
    # only decoders have it
    is_listed_idle = False

    def concerns(self, context: Context) -> bool:
        cached = context.target.steps or any(is_cache_output(name) for name in context.output_names)
        return cached and LOGITS in context.output_names

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts projections that compute selected tokens only."""
        logits = model.graph.outputs[list(context.output_names).index(LOGITS)]
        path = _path(logits)
        if isinstance(path, Refusal):
            return PassResult(rejected=(path.reason,))
        _select(path, _added_input(model.graph, required=NUM_LOGITS in context.fed))
        return PassResult(1)


def _path(logits: ir.Value) -> list[ir.Node] | Refusal:
    """The nodes from the first projection that can compute fewer tokens to ``logits``, or why there is none."""
    if token_axes(logits) is None:
        return Refusal("its logits have no axis of tokens")
    nodes: list[ir.Node] = []
    value, length = logits, 0
    while (node := value.producer()) is not None:
        if value.uses() if value is logits else only(value) is None:
            reason = f"more than the logits depends on the output of {node.op_type}"
            break
        by_token = acts_on_channels(node) or (node.op_type in _BY_TOKEN and not node.domain)
        operands = read_by_token(node) if by_token else []
        if len(node.outputs) > 1 or len(operands) != 1 or token_axes(operands[0]) is None:
            reason = f"{node.op_type} between the last projection and the logits is not known to compute tokens apart"
            break
        nodes.append(node)
        if node.op_type == "MatMul":
            length = len(nodes)
        value = operands[0]
    else:
        reason = "its logits are not computed from tokens by a projection"
    return nodes[length - 1 :: -1] if length else Refusal(reason)


def _added_input(graph: ir.Graph, *, required: bool) -> ir.Value:
    """The new input of ``graph``: a scalar, with the default 0 unless it is ``required``."""
    number = ir.Value(name=NUM_LOGITS, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    graph.inputs.append(number)
    if not required:
        number.const_value = ir.tensor(np.array(0), dtype=ir.DataType.INT64, name=NUM_LOGITS)
        graph.register_initializer(number)
    return number


def _select(path: list[ir.Node], number: ir.Value) -> None:
    """Let ``path`` compute the last ``number`` tokens, all of them for 0."""
    x = path[0].inputs[0]
    assert x is not None
    lead = token_axes(x)
    assert lead is not None
    g = Builder.at(path[0], name="last_logits")
    tokens = g.size(x, 1)
    # -number, with a size: ONNX Runtime computes sums of sizes on the host, and Neg of an input on the device. The
    # result is [1], also where a client feeds a scalar
    start = g.Sub(g.Sub(tokens, number), tokens)
    last = g.op("Slice", x, start, [_LAST], [1], name="last_tokens", shape=[lead[0], _KEPT, width(x)])
    path[0].replace_input_with(0, last)
    for node in path:
        value = node.outputs[0]
        if not value.is_graph_output():
            value.shape = ir.Shape([lead[0], _KEPT, width(value)])

"""Wrong sizes in a trace: of keys and values that a merged decoder may not compute.

The tracer gets the sizes of the whole (`posexport.models.encoder_decoder_parts.completed`), as ONNX's inference knows
none. What it made of them must not stay in the file: reshapes to the whole's size fail where nothing is left to
compute, and ONNX Runtime reuses buffers by stated sizes.
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from posexport.base.spec import ENCODER_PAST, ENCODER_STATES, InputSpec
from posexport.graph.edits import integers
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult


class EncoderStates(GraphPass):
    """Reshapes of keys and values that a merged decoder computes of the encoder's states keep their sizes.

    Before: ``Reshape(MatMul(states, w), [batch, encoder_sequence, H, D])``
    After:  ``Reshape(MatMul(states, w), [0, 0, H, D])``
    """

    name = "encoder-states"
    description = "keys and values of a merged decoder split into heads whatever their length, 0 too"
    phase = "recognise"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts reshapes."""
        reshapes = [node for node in computed_of_states(model, context.inputs) if node.op_type == "Reshape"]
        for node in reshapes:
            shape = node.outputs[0].shape
            assert shape is not None
            heads, size = shape[-2], shape[-1]
            assert isinstance(heads, int), node
            assert isinstance(size, int), node
            node.replace_input_with(1, integers(model.graph, [0, 0, heads, size]))
            node.attributes.pop("allowzero", None)
        return PassResult(len(reshapes))


def forget_sizes(model: ir.Model, inputs: Sequence[InputSpec]) -> None:
    """Drop the shapes of values computed from the encoder's states, up to the Concat with the cross-attention cache."""
    for node in computed_of_states(model, inputs):
        for output in node.outputs:
            output.shape = None


def computed_of_states(model: ir.Model, inputs: Sequence[InputSpec]) -> Iterator[ir.Node]:
    """The nodes between the encoder's states and their cache; none without a cross-attention cache."""
    held = {value for value, spec in zip(model.graph.inputs, inputs, strict=False) if ENCODER_PAST in spec.axes}
    states = [value for value, spec in zip(model.graph.inputs, inputs, strict=False) if spec.name == ENCODER_STATES]
    queue = states if held else []
    seen: set[ir.Node] = set()
    while queue:
        for node, _ in queue.pop().uses():
            # Shape of the states is the size of the whole
            if node in seen or node.op_type == "Shape" or (node.op_type == "Concat" and held & set(node.inputs)):
                continue
            seen.add(node)
            yield node
            queue += node.outputs


def values_of_states(model: ir.Model, inputs: Sequence[InputSpec]) -> Iterator[ir.Value]:
    """The encoder's states and what is computed of them before their cache, which later calls have no rows of."""
    nodes = list(computed_of_states(model, inputs))
    yield from (value for node in nodes for value in node.outputs)
    yield from (
        value for value, spec in zip(model.graph.inputs, inputs, strict=False) if nodes and spec.name == ENCODER_STATES
    )

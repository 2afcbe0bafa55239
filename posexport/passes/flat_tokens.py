"""What works token by token, on a matrix with a row for every token: [B * T, C] instead of [B, T, C].

A linear projection with a bias is then one Gemm. And ONNX Runtime leaves Add and LayerNormalization alone: of values of
three axes it makes a SkipLayerNormalization at every session's start, whose CPU kernel takes 2 to 5 times as long and
sums one by one in float32. The axes come back where something reads them: mostly at a Reshape to heads, which there is
anyway.

Values of a region change their shape in place; each value of three axes that enters is reshaped once, and what leaves
is reshaped back unless a Reshape reads it.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from posexport.graph.edits import integers, put, put_after, replace
from posexport.graph.queries import constant, producer, sizes, width
from posexport.passes.graph_pass import GraphPass, PassResult
from posexport.passes.token_regions import Region, bias_of, regions, token_axes
from posexport.targets.target import Target


class FlatTokens(GraphPass):
    """For the CPU; regions without a biased projection and without a sum before a LayerNormalization stay."""

    name = "flat-tokens"
    description = "what works token by token on [B * T, C]: biased projections become Gemm"

    def why_not_preferred(self, target: Target) -> str | None:
        """Measured with onnxruntime 1.31 on two cores, layers of BERT-base: 2 to 7% less time on the CPU."""
        portable = None if target.provider else "it is for ONNX Runtime on the CPU; use --target cpu"
        return portable or super().why_not_preferred(target)

    def apply(self, model: ir.Model, target: Target) -> PassResult:
        """Counts projections that became a Gemm, and sums that ONNX Runtime no longer fuses."""
        flattening = _Flattening(model.graph)
        nodes, left = 0, False
        for region in regions(model.graph, ir.DataType[target.dtype.onnx]):
            projections, sums = region.projections, region.normalised_sums
            if projections or sums:
                flattening.apply(region)
                for product in projections:
                    _to_gemm(product)
                nodes += len(projections) + len(sums)
            else:
                left = True
        reason = "a region has neither a projection with a bias nor a LayerNormalization of a sum"
        return PassResult(nodes, (reason,) if left else ())


def _to_gemm(product: ir.Node) -> None:
    projection = bias_of(product)
    assert projection is not None
    add, bias = projection
    gemm = ir.node("Gemm", [*product.inputs, bias], name=product.name)
    put(gemm, product, (product, add))
    replace(add.outputs[0], gemm.outputs[0])
    for node in (add, product):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


class _Flattening:
    """Of one graph: what has entered any region, as a matrix, and the shapes that bring axes back."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._matrices: dict[ir.Value, ir.Value] = {}
        self._shapes: dict[ir.Value, _Shapes] = {}

    def apply(self, region: Region) -> None:
        """Give the values of ``region`` their new shape, and reshape what enters and leaves."""
        inside = set(region.nodes)
        entering = region.entering
        shapes = self._shapes_like(entering[0])
        leaving = [value for node in region.nodes for value in node.outputs]
        for value in entering:
            if value not in self._matrices:
                self._matrices[value] = self._as_matrix(value)
        for node in region.nodes:
            for place, value in enumerate(node.inputs):
                if value in self._matrices:
                    node.replace_input_with(place, self._matrices[value])
            if "axis" in node.attributes:
                node.attributes["axis"] = ir.AttrInt64("axis", -1)
        for value in leaving:
            shape = value.shape
            assert shape is not None
            readers = [
                (node, place) for node, place in value.uses() if node not in inside and not _flattens(node, place)
            ]
            value.shape = ir.Shape([None, shape[-1]])
            if readers or value.is_graph_output():
                _bring_axes_back(value, shape, readers, shapes)

    def _shapes_like(self, value: ir.Value) -> "_Shapes":
        """Shapes read from an input with the same batch and tokens, rather than from a value nothing else may need."""
        inputs = [each for each in self._graph.inputs if each.const_value is None]
        like = next((each for each in inputs if (sizes(each) or ())[:2] == token_axes(value)), value)
        return self._shapes.setdefault(like, _Shapes(self._graph, like))

    def _as_matrix(self, value: ir.Value) -> ir.Value:
        """``value`` with a row for every token."""
        channels, before = width(value), value.producer()
        assert channels is not None
        # of two reshapes in a row the first says nothing
        reshaped = producer(value, "Reshape")
        source: ir.Value | None = value if reshaped is None else reshaped.inputs[0]
        node = ir.node("Reshape", [source, integers(self._graph, [-1, channels])], name=f"node_{value.name}_rows")
        matrix = node.outputs[0]
        matrix.name, matrix.type, matrix.shape = f"{value.name}_rows", value.type, ir.Shape([None, channels])
        put_after(self._graph, before, node)
        if reshaped is not None:
            node.metadata_props.update(reshaped.metadata_props)
        return matrix


def _flattens(node: ir.Node, place: int) -> bool:
    """Whether the node gives what it reads there a shape that does not depend on the shape it has."""
    if node.op_type != "Reshape" or node.domain or place != 0:
        return False
    shape = constant(node.inputs[1])
    return node.attributes.get_int("allowzero", 0) == 1 or (shape is not None and 0 not in shape)


def _bring_axes_back(
    matrix: ir.Value, shape: ir.Shape, readers: Sequence[tuple[ir.Node, int]], shapes: "_Shapes"
) -> None:
    """Let ``readers``, and the graph where it outputs ``matrix``, have axes of batch and tokens again."""
    before = matrix.producer()
    channels = shape[-1]
    assert before is not None
    assert before.graph is not None
    assert isinstance(channels, int)
    inputs = [matrix, shapes.with_channels(channels)]
    node = ir.node("Reshape", inputs, {"allowzero": 1}, name=f"node_{matrix.name}_tokens")
    node.metadata_props.update(before.metadata_props)
    put_after(before.graph, before, node)
    value = node.outputs[0]
    value.type, value.shape = matrix.type, shape
    for reader, place in readers:
        reader.replace_input_with(place, value)
    if matrix.is_graph_output():
        outputs = before.graph.outputs
        for place, output in enumerate(outputs):
            if output is matrix:
                outputs[place] = value
        value.name, matrix.name = matrix.name, f"{matrix.name}_rows"
    else:
        value.name = f"{matrix.name}_tokens"


class _Shapes:
    """Shapes [batch, tokens, channels] with batch and tokens of ``like``, computed in the graph."""

    def __init__(self, graph: ir.Graph, like: ir.Value) -> None:
        self._graph, self._like = graph, like
        self._lead: ir.Node | None = None
        self._by_channels: dict[int, ir.Value] = {}

    def with_channels(self, channels: int) -> ir.Value:
        """For values of so many channels, int64 [3]."""
        if self._lead is None:
            self._lead = self._node("Shape", [self._like], {"start": 0, "end": 2}, "batch_and_tokens", 2)
            put_after(self._graph, self._like.producer(), self._lead)
        if channels not in self._by_channels:
            sizes_3 = [self._lead.outputs[0], integers(self._graph, [channels])]
            node = self._node("Concat", sizes_3, {"axis": 0}, f"batch_and_tokens_and_{channels}", 3)
            put_after(self._graph, self._lead, node)
            self._by_channels[channels] = node.outputs[0]
        return self._by_channels[channels]

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int], what: str, size: int
    ) -> ir.Node:
        name = f"{what}_of_{self._like.name}"
        node = ir.node(op_type, inputs, attributes, name=f"node_{name}")
        value = node.outputs[0]
        value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.INT64), ir.Shape([size])
        return node

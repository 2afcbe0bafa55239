"""What works token by token, on a matrix with a row for every token: [B * T, C] instead of [B, T, C].

A linear projection with a bias is then one Gemm. And ONNX Runtime leaves Add and LayerNormalization alone: of values of
three axes it makes a SkipLayerNormalization at every session's start, and its CPU kernel takes 2 to 5 times as long and
sums one by one in float32. The axes come back where something reads them: mostly at a Reshape to heads, which there is
anyway.

Values of a region change their shape in place; each value of three axes that enters is reshaped once, and what leaves
is reshaped back unless a Reshape reads it.
"""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.passes.recognise.encoder_states import computed_of_states
from posexport.graph.passes.token_regions import Region, bias_of, regions, token_axes
from posexport.graph.queries import constant, producer, sizes, width


class FlatTokens(GraphPass):
    """Regions that work token by token on a matrix with a row for every token.

    Before: ``x [B, T, C] -> MatMul(.., w) -> Add(.., bias) -> Reshape [B, T, H, D]``
    After:  ``x -> Reshape [B * T, C] -> Gemm(.., w, bias) -> Reshape [B, T, H, D]``

    For the CPU; regions without a biased projection and without a sum before a LayerNormalization stay.
    """

    name = "flat-tokens"
    description = "what works token by token on [B * T, C]: biased projections become Gemm"

    def why_not_preferred(self, target: Target) -> str | None:
        """Measured with onnxruntime 1.31 on two cores, layers of BERT-base: 2 to 7% less time on the CPU."""
        portable = None if target.provider else "it is for ONNX Runtime on the CPU; use --target cpu"
        return portable or super().why_not_preferred(target)

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts projections that became a Gemm, and sums that are no longer fused."""
        flattening = _Flattening(model.graph)
        of_states = set(computed_of_states(model, context.inputs))
        refused: list[str | None] = []
        for region in regions(model.graph, ir.DataType[MODEL_DTYPE.onnx]):
            projections, sums = region.projections, region.normalised_sums
            if of_states & set(region.nodes):
                refused.append("a merged decoder computes keys of all encoder states, or of none where it has them")
            elif projections or sums:
                flattening.apply(region)
                for product in projections:
                    _to_gemm(product)
                refused += [None] * (len(projections) + len(sums))
            else:
                refused.append("a region has neither a projection with a bias nor a LayerNormalization of a sum")
        return PassResult.of(refused)


def _to_gemm(product: ir.Node) -> None:
    projection = bias_of(product)
    assert projection is not None
    add, bias = projection
    replace(add.outputs[0], Builder.at(product, like=(product, add)).Gemm(*product.inputs, bias))
    for node in (add, product):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def flatten(graph: ir.Graph, lead: tuple[int | str, ...] | None = None) -> None:
    """All that works token by token, also where only a row for every token is wanted; ``lead``: of these axes alone."""
    flattening = _Flattening(graph)
    for region in regions(graph, ir.DataType[MODEL_DTYPE.onnx]):
        if lead is None or token_axes(region.entering[0]) == lead:
            flattening.apply(region)


class _Flattening:
    """Of one graph: what has entered any region, as a matrix, and the shapes that bring axes back."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._matrices: dict[ir.Value, ir.Value] = {}
        self._written: dict[str, ir.Value] = {}

    def apply(self, region: Region) -> None:
        """Give the values of ``region`` their new shape, and reshape what enters and leaves."""
        inside = set(region.nodes)
        entering = region.entering
        known = self._known_sizes(entering[0])
        for value in entering:
            self._enter(value)
        for node in region.nodes:
            for place, read in enumerate(node.inputs):
                if read in self._matrices:
                    node.replace_input_with(place, self._matrices[read])
            if "axis" in node.attributes:
                node.attributes["axis"] = ir.AttrInt64("axis", -1)
        for value in [value for node in region.nodes for value in node.outputs if token_axes(value) is not None]:
            shape = value.shape
            assert shape is not None
            outside = [(node, place) for node, place in value.uses() if node not in inside]
            readers = [(node, place) for node, place in outside if not _flattens(node, place)]
            value.shape = ir.Shape([None, shape[-1]])
            if readers or value.is_graph_output():
                self._bring_axes_back(value, shape, readers, known)

    def _known_sizes(self, value: ir.Value) -> tuple[ir.Value, list[int]]:
        """A value whose first sizes are those of batch and tokens, and the number of tokens where it lacks them.

        An input rather than a value that nothing else may need: what one layer computed, others would depend on.
        """
        inputs = [each for each in self._graph.inputs if each.const_value is None]
        lead = token_axes(value)
        assert lead is not None
        if (like := next((each for each in inputs if (sizes(each) or ())[:2] == lead), None)) is not None:
            return like, []
        batch = next((each for each in inputs if (sizes(each) or ())[:1] == lead[:1]), None)
        return (value, []) if batch is None or not isinstance(lead[1], int) else (batch, [lead[1]])

    def _enter(self, value: ir.Value) -> None:
        """Make a matrix of ``value``, once, which what splits it into heads reads too."""
        if value in self._matrices:
            return
        matrix = self._matrices[value] = self._as_matrix(value)
        for node, place in list(value.uses()):
            if node is not matrix.producer() and _flattens(node, place):
                node.replace_input_with(place, matrix)

    def _as_matrix(self, value: ir.Value) -> ir.Value:
        """``value`` with a row for every token."""
        channels = width(value)
        assert channels is not None
        # of two reshapes in a row the first says nothing, but what a matrix is: one row for every token
        reshaped = producer(value, "Reshape")
        split = reshaped is not None and reshaped.inputs[0] is not None and len(sizes(reshaped.inputs[0]) or ()) != 2
        source, name = reshaped.inputs[0] if reshaped and split else value, f"{value.name}_rows"
        return self._once(name, value, lambda g: g.Reshape(source, [-1, channels], name=name))

    def _bring_axes_back(
        self,
        matrix: ir.Value,
        shape: ir.Shape,
        readers: Sequence[tuple[ir.Node, int]],
        known: tuple[ir.Value, list[int]],
    ) -> None:
        """Let ``readers``, and the graph where it outputs ``matrix``, have axes of batch and tokens again."""
        before, channels = matrix.producer(), shape[-1]
        assert before is not None
        assert isinstance(channels, int)
        g = Builder.at(before, after=True)
        whole = self._token_shape(*known, channels)
        value = g.op("Reshape", matrix, whole, allowzero=1, name=f"{matrix.name}_tokens", shape=shape)
        for reader, place in readers:
            reader.replace_input_with(place, value)
        if matrix.is_graph_output():
            outputs = self._graph.outputs
            for place, output in enumerate(outputs):
                if output is matrix:
                    outputs[place] = value
            value.name, matrix.name = matrix.name, f"{matrix.name}_rows"

    def _token_shape(self, like: ir.Value, tokens: list[int], channels: int) -> ir.Value:
        """[batch, tokens, channels] with batch, and tokens unless they are given, of ``like``, int64 [3]."""
        known = "".join(f"_{number}" for number in tokens)
        name = f"batch_of_{like.name}" if tokens else f"batch_and_tokens_of_{like.name}"
        lead = self._once(name, like, lambda g: g.Shape(like, start=0, end=2 - len(tokens), name=name))
        whole = f"batch_and{known}_tokens_and_{channels}_of_{like.name}"
        return self._once(whole, lead, lambda g: g.Concat(lead, [*tokens, channels], axis=0, name=whole))

    def _once(self, name: str, behind: ir.Value, write: Callable[[Builder], ir.Value]) -> ir.Value:
        """The value of this name, written ``behind`` another one if no earlier pass has."""
        if name not in self._written:
            existing = next((node for node in self._graph if node.name == f"node_{name}"), None)
            self._written[name] = existing.outputs[0] if existing else write(Builder.behind(self._graph, behind))
        return self._written[name]


def _flattens(node: ir.Node, place: int) -> bool:
    """Whether the node gives what it reads there a shape that does not depend on the shape it has."""
    if node.op_type != "Reshape" or node.domain or place != 0:
        return False
    shape = constant(node.inputs[1])
    return node.attributes.get_int("allowzero", 0) == 1 or (shape is not None and 0 not in shape)

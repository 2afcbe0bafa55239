"""What works token by token, on a matrix with a row for every token: [B * T, C] in the place of [B, T, C].

A map with a bias is then one Gemm. And ONNX Runtime leaves Add and LayerNormalization alone: of values of three axes it
makes a SkipLayerNormalization at every session's start, whose CPU kernel takes 2 to 5 times as long and sums one by one
in float32. The axes come back where something reads them: mostly at a Reshape to heads, which there is anyway.

Of a graph's nodes, those that work token by token and hang together are a region. Its values change their shape in
place; each of two axes that enters is reshaped once, and what leaves is reshaped back unless a Reshape reads it.
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from posexport.graph.edits import integers, put, put_after, replace
from posexport.graph.queries import axis, constant, is_weight, only, producer, sizes, width
from posexport.targets.target import MICROSOFT, Target

_OF_ONE = {
    "Gelu",
    "Sigmoid",
    "Tanh",
    "Relu",
    "Erf",
    "Sqrt",
    "Neg",
    "Abs",
    "Reciprocal",
    "Swish",
    "Identity",
    "Softplus",
}
_OF_MANY = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}
_NORMS = {"LayerNormalization", "RMSNormalization"}
_OF_ONE_MICROSOFT = {"Gelu", "FastGelu", "BiasGelu", "QuickGelu"}


class Rows:
    """For the CPU; regions without a biased map and without a sum before a LayerNormalization stay as they are."""

    name = "rows"

    def refusal(self, target: Target) -> str | None:
        """Standard operators of any opset."""
        del target
        return None

    def beaten(self, target: Target) -> str | None:
        """Measured with onnxruntime 1.31 on two cores, layers of BERT-base: 2 to 7% less time on the CPU."""
        portable = None if target.provider else "it is for ONNX Runtime on the CPU; use --target cpu"
        return portable or target.unprofitable(self.name)

    def apply(self, model: ir.Model, target: Target) -> int:
        """How many maps became a Gemm, and how many sums were kept from being fused."""
        del target
        done = 0
        flat: dict[ir.Value, ir.Value] = {}
        shapes: dict[ir.Value, _Shapes] = {}
        for region in _regions(model.graph):
            maps = [node for node in region if _biased(node) is not None]
            sums = [node for node in region if _summed(node)]
            if maps or sums:
                _flatten(model.graph, region, flat, shapes)
                for node in maps:
                    _to_gemm(node)
                done += len(maps) + len(sums)
        return done


def _regions(graph: ir.Graph) -> Iterator[list[ir.Node]]:
    """Nodes that hang together, each list in the graph's order."""
    nodes = [node for node in graph if _by_token(node)]
    inside = set(nodes)
    # where it begins, a sum of several values that enter is better done before: one value enters then
    for node in nodes:
        fed = [value for value in _tokens(node) if value.producer() in inside]
        if not fed and node.op_type in _OF_ONE | _OF_MANY and not node.domain and not _before_norm(node):
            inside.discard(node)
    region_of: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        if node in inside:
            region = [node]
            for value in _tokens(node):
                before = value.producer()
                other = region_of.get(before) if before is not None else None
                if other is not None and other is not region:
                    other += region
                    for each in region:
                        region_of[each] = other
                    region = other
            region_of[node] = region
    order = {node: place for place, node in enumerate(nodes)}
    seen: set[int] = set()
    for region in region_of.values():
        if id(region) not in seen:
            seen.add(id(region))
            yield sorted(region, key=order.__getitem__)


def _tokens(node: ir.Node) -> list[ir.Value]:
    """What the node reads token by token."""
    return [value for value in node.inputs if value is not None and _lead(value) is not None]


def _lead(value: ir.Value) -> tuple[int | str, ...] | None:
    """The sizes of batch and tokens, of a value that has these and channels whose number is known."""
    known = sizes(value)
    if known is None or len(known) != 3 or width(value) is None or value.const_value is not None:
        return None
    return known[:2]


def _by_token(node: ir.Node) -> bool:
    """Whether every row of what the node gives depends on the same row of what it reads and on nothing else."""
    first = node.inputs[0] if node.inputs else None
    leads = {_lead(value) for value in node.outputs}
    lead = next(iter(leads)) if len(leads) == 1 else None
    if first is None or lead is None or any(value.dtype != ir.DataType.FLOAT for value in node.outputs):
        return False
    if node.domain == MICROSOFT:
        ok = node.op_type in _OF_ONE_MICROSOFT
    elif node.domain:
        ok = False
    elif node.op_type == "MatMul":
        second = node.inputs[1]
        ok = second is not None and second.shape is not None and len(second.shape) == 2
        return ok and _lead(first) == lead
    elif node.op_type == "Split":
        return axis(node, 0) == -1 and _lead(first) == lead
    elif node.op_type == "ReduceMean":
        axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        return axes is not None and axes.tolist() == [-1] and _lead(first) == lead
    elif node.op_type in _NORMS:
        ok = axis(node, -1) == -1
    else:
        ok = node.op_type in _OF_ONE | _OF_MANY
    return (
        ok and bool(_tokens(node)) and all(_same_for_all(v) or _lead(v) == lead for v in node.inputs if v is not None)
    )


def _same_for_all(value: ir.Value) -> bool:
    """A number, or one for every channel."""
    return value.shape is not None and len(value.shape) <= 1


def _before_norm(node: ir.Node) -> bool:
    return any(user.op_type == "LayerNormalization" for value in node.outputs for user, _ in value.uses())


def _summed(node: ir.Node) -> bool:
    """Whether the node is a LayerNormalization of a sum of two values of tokens."""
    add = producer(node.inputs[0], "Add") if node.op_type == "LayerNormalization" else None
    return add is not None and len(_tokens(add)) == 2


def _biased(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Of a MatMul that nothing but an Add of a bias reads: that node and the bias."""
    add = only(node.outputs[0]) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or add.domain:
        return None
    bias = next((value for value in add.inputs if value is not node.outputs[0]), None)
    if bias is None or not is_weight(bias, 1) or width(bias) != width(node.outputs[0]):
        return None
    return add, bias


def _to_gemm(product: ir.Node) -> None:
    found = _biased(product)
    assert found is not None
    add, bias = found
    gemm = ir.node("Gemm", [*product.inputs, bias], name=product.name)
    put(gemm, product, (product, add))
    replace(add.outputs[0], gemm.outputs[0])
    for node in (add, product):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _flatten(
    graph: ir.Graph,
    region: Sequence[ir.Node],
    flat: dict[ir.Value, ir.Value],
    shapes: dict[ir.Value, "_Shapes"],
) -> None:
    """Give the values of ``region`` their new shape, and reshape what enters and leaves.

    ``flat``: what has entered this or another region before, and what became of it; ``shapes``: by
    what they are read from.
    """
    inside = set(region)
    entering = [value for node in region for value in _tokens(node) if value.producer() not in inside]
    leaving = [value for node in region for value in node.outputs]
    like = _sized_alike(graph, entering[0])
    back = shapes.setdefault(like, _Shapes(graph, like))
    for value in entering:
        if value not in flat:
            flat[value] = _flat(graph, value)
    for node in region:
        for place, given in enumerate(node.inputs):
            if given in flat:
                node.replace_input_with(place, flat[given])
        if "axis" in node.attributes:
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
    for value in leaving:
        shape = value.shape
        assert shape is not None
        apart = [(node, place) for node, place in value.uses() if node not in inside and not _is_reshaped(node, place)]
        value.shape = ir.Shape([None, shape[-1]])
        if apart or value.is_graph_output():
            _back(value, shape, apart, back)


def _is_reshaped(node: ir.Node, place: int) -> bool:
    """Whether the node gives what it reads there a shape that does not depend on the shape it has."""
    if node.op_type != "Reshape" or node.domain or place != 0:
        return False
    target = constant(node.inputs[1])
    return node.attributes.get_int("allowzero", 0) == 1 or (target is not None and 0 not in target)


def _flat(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """``value`` with a row for every token."""
    channels, before = width(value), value.producer()
    assert channels is not None
    # of two reshapes in a row the first says nothing
    reshaped = producer(value, "Reshape")
    source: ir.Value | None = value if reshaped is None else reshaped.inputs[0]
    node = ir.node("Reshape", [source, integers(graph, [-1, channels])], name=f"node_{value.name}_rows")
    made = node.outputs[0]
    made.name, made.type, made.shape = f"{value.name}_rows", value.type, ir.Shape([None, channels])
    put_after(graph, before, node)
    if reshaped is not None:
        node.metadata_props.update(reshaped.metadata_props)
    return made


def _back(value: ir.Value, shape: ir.Shape, readers: Sequence[tuple[ir.Node, int]], shapes: "_Shapes") -> None:
    """Let ``readers``, and the graph if it gives ``value``, have axes of batch and tokens again."""
    before = value.producer()
    channels = shape[-1]
    assert before is not None
    assert before.graph is not None
    assert isinstance(channels, int)
    target = shapes.with_channels(channels)
    node = ir.node("Reshape", [value, target], {"allowzero": 1}, name=f"node_{value.name}_tokens")
    node.metadata_props.update(before.metadata_props)
    put_after(before.graph, before, node)
    made = node.outputs[0]
    made.type, made.shape = value.type, shape
    for reader, place in readers:
        reader.replace_input_with(place, made)
    outputs = before.graph.outputs
    if value.is_graph_output():
        for place, output in enumerate(outputs):
            if output is value:
                outputs[place] = made
        made.name, value.name = value.name, f"{value.name}_rows"
    else:
        made.name = f"{value.name}_tokens"


def _sized_alike(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """An input with batch and tokens as ``value`` has, rather than a value that nothing else may need; else itself."""
    for given in graph.inputs:
        if given.const_value is None and (sizes(given) or ())[:2] == _lead(value):
            return given
    return value


class _Shapes:
    """Shapes [batch, tokens, channels] as the graph computes them, made when they are asked for."""

    def __init__(self, graph: ir.Graph, like: ir.Value) -> None:
        self._graph, self._like = graph, like
        self._lead: ir.Node | None = None
        self._made: dict[int, ir.Value] = {}

    def with_channels(self, channels: int) -> ir.Value:
        """For values of so many channels, int64 [3]."""
        if self._lead is None:
            self._lead = self._node("Shape", [self._like], {"start": 0, "end": 2}, "batch_and_tokens", 2)
            put_after(self._graph, self._like.producer(), self._lead)
        if channels not in self._made:
            given = [self._lead.outputs[0], integers(self._graph, [channels])]
            node = self._node("Concat", given, {"axis": 0}, f"batch_and_tokens_and_{channels}", 3)
            put_after(self._graph, self._lead, node)
            self._made[channels] = node.outputs[0]
        return self._made[channels]

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, int], what: str, size: int
    ) -> ir.Node:
        name = f"{what}_of_{self._like.name}"
        node = ir.node(op_type, inputs, attributes, name=f"node_{name}")
        made = node.outputs[0]
        made.name, made.type, made.shape = name, ir.TensorType(ir.DataType.INT64), ir.Shape([size])
        return node

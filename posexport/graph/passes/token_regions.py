"""Regions of a graph that work token by token: every row of a node's output depends on the same row of its inputs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT
from posexport.graph.queries import axis, constant, is_weight, only, producer, sizes, width

_UNARY = ("Gelu", "Sigmoid", "Tanh", "Relu", "Erf", "Sqrt", "Neg", "Abs", "Reciprocal", "Swish", "Identity", "Softplus")
_ELEMENTWISE = (*_UNARY, "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
_ELEMENTWISE_MICROSOFT = ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")
#: normalisations of a sum, over the last axis of matrices too
_SKIP_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


def _has_weight_matrix(node: ir.Node) -> bool:
    return node.inputs[1] is not None and node.inputs[1].shape is not None and len(node.inputs[1].shape) == 2


def _reduces_channels(node: ir.Node) -> bool:
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return axes is not None and axes.tolist() == [-1]


#: (domain, operator) -> whether a node of it acts on channels only
_ACTS_ON_CHANNELS: dict[tuple[str, str], Callable[[ir.Node], bool]] = {
    **{("", name): lambda _: True for name in _ELEMENTWISE},
    **{(MICROSOFT, name): lambda _: True for name in (*_ELEMENTWISE_MICROSOFT, *_SKIP_NORMS)},
    ("", "MatMul"): _has_weight_matrix,
    ("", "Split"): lambda node: axis(node, 0) == -1,
    ("", "ReduceMean"): _reduces_channels,
    ("", "LayerNormalization"): lambda node: axis(node, -1) == -1,
    ("", "RMSNormalization"): lambda node: axis(node, -1) == -1,
}
#: operators with other inputs than tokens: a matrix, sizes, axes
_FIRST_INPUT_ONLY = {"MatMul", "Split", "ReduceMean"}


@dataclass(frozen=True)
class Region:
    """Connected nodes that work token by token, in the graph's order."""

    nodes: list[ir.Node]

    @property
    def entering(self) -> list[ir.Value]:
        """Values of tokens that nodes outside compute."""
        inside = set(self.nodes)
        return [value for node in self.nodes for value in token_values(node) if value.producer() not in inside]

    @property
    def projections(self) -> list[ir.Node]:
        """MatMul with a bias that is added inside."""
        inside = set(self.nodes)
        return [node for node in self.nodes if (biased := bias_of(node)) is not None and biased[0] in inside]

    @property
    def normalised_sums(self) -> list[ir.Node]:
        """LayerNormalization of a sum of two values of tokens."""
        norms = [node for node in self.nodes if node.op_type == "LayerNormalization"]
        sums = [producer(node.inputs[0], "Add") for node in norms]
        return [add for add in sums if add is not None and len(token_values(add)) == 2]


def regions(graph: ir.Graph, dtype: ir.DataType) -> Iterator[Region]:
    """All regions of values of ``dtype``, in the order of their first nodes."""
    candidates = [node for node in graph if _works_by_token(node, dtype)]
    inside = set(candidates)
    # at a region's start a sum of several values that enter is better done before: one value enters then
    for node in candidates:
        fed = any(value.producer() in inside for value in token_values(node))
        if not fed and not node.domain and node.op_type in _ELEMENTWISE and not _is_read_by_norm(node):
            inside.discard(node)
    nodes = [node for node in candidates if node in inside]
    region_of: dict[ir.Node | None, list[ir.Node]] = {}
    for node in nodes:
        producers = [value.producer() for value in token_values(node)]
        joined = list({id(region): region for region in map(region_of.get, producers) if region}.values())
        region = joined[0] if joined else []
        for other in joined[1:]:
            region += other
            region_of.update(dict.fromkeys(other, region))
        region.append(node)
        region_of[node] = region
    place = {node: number for number, node in enumerate(nodes)}
    for region in {id(region): region for region in region_of.values()}.values():
        yield Region(sorted(region, key=place.__getitem__))


def token_values(node: ir.Node) -> list[ir.Value]:
    """The inputs that have a row for every token."""
    return [value for value in node.inputs if value is not None and token_axes(value) is not None]


def _read_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that nodes read, or the graph gives: normalisations of sums have up to three more."""
    return [value for value in node.outputs if value.uses() or value.is_graph_output()]


def token_axes(value: ir.Value) -> tuple[int | str, ...] | None:
    """The sizes of batch and tokens of a value [batch, tokens, channels] with a known number of channels."""
    shape = sizes(value)
    if shape is None or len(shape) != 3 or width(value) is None or value.const_value is not None:
        return None
    return shape[:2]


def bias_of(product: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add of a bias that alone reads a MatMul, and the bias."""
    add = only(product.outputs[0]) if product.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or add.domain:
        return None
    bias = next((value for value in add.inputs if value is not product.outputs[0]), None)
    return (add, bias) if bias and is_weight(bias, 1) and width(bias) == width(product.outputs[0]) else None


def acts_on_channels(node: ir.Node) -> bool:
    """Whether a node computes each token from its channels alone, if it reads values of the same tokens."""
    condition = _ACTS_ON_CHANNELS.get((node.domain, node.op_type))
    return condition is not None and condition(node)


def read_by_token(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node that `acts_on_channels` with other elements for other tokens."""
    read = node.inputs[:1] if node.op_type in _FIRST_INPUT_ONLY else node.inputs
    return [value for value in read if value is not None and not _is_one_for_all_tokens(value)]


def _works_by_token(node: ir.Node, dtype: ir.DataType) -> bool:
    if not acts_on_channels(node):
        return False
    # an output of the graph has other names for the same sizes
    if any(value.dtype != dtype or token_axes(value) is None for value in _read_outputs(node)):
        return False
    leads = {token_axes(value) for value in read_by_token(node)}
    return len(leads) == 1 and None not in leads


def _is_one_for_all_tokens(value: ir.Value) -> bool:
    """A scalar, or a value for every channel."""
    return value.shape is not None and len(value.shape) <= 1


def _is_read_by_norm(node: ir.Node) -> bool:
    return any(user.op_type == "LayerNormalization" for value in node.outputs for user, _ in value.uses())

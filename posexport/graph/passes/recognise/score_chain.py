"""The nodes of attention in any layout: from the product of queries and keys to the product with values."""

from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.graph.ops.dropped_scores import drops
from posexport.graph.queries import constant, number, producer, sizes

#: operators that compute scores from scores and a mask, a bias or a factor, with the inputs that may be scores
_ELEMENTWISE = {"Mul": (0, 1), "Div": (0,), "Add": (0, 1), "Sub": (0,), "Where": (1, 2), "Tanh": (0,)}

#: axes of [B, H, T, S]
_SPLIT_HEADS = 4


@dataclass
class Step:
    """A node that computes scores from its input ``at``.

    Attributes:
        biases: terms added between two Reshapes, where ``node`` is the last one, and ``shape`` its target shape.
        layout: the axis of the product's scores that each axis of the output is.
    """

    node: ir.Node
    at: int
    before: ir.Value
    biases: list[ir.Value] = field(default_factory=list)
    layout: tuple[int, ...] = ()

    @property
    def output(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def shape(self) -> ir.Value | None:
        return self.node.inputs[1]


@dataclass
class Chain:
    """The nodes of attention in their order.

    Attributes:
        product: of queries and keys.
        steps: from the product to ``softmax``.
        after: Transposes from ``softmax`` to ``context``, the product with values.
        zeroed: conditions that set probabilities to 0 and drop scores, in the product's layout.
        values_first: whether the second product is ``v @ probs.mT``, of values [.., D, S].
        is_unusual: whether something other than masks, biases, factors and a cap is between the products, or the second
            one multiplies values with probabilities.
    """

    product: ir.Node
    steps: list[Step]
    softmax: ir.Node
    after: list[ir.Node]
    context: ir.Node
    zeroed: list[ir.Value]
    values_first: bool
    is_unusual: bool

    @property
    def values(self) -> ir.Value:
        v = self.context.inputs[0 if self.values_first else 1]
        assert v is not None
        return v


def chain(softmax: ir.Node) -> Chain | None:
    """The attention around ``softmax``; None for another use of it."""
    # forward to the product with values
    after, zeroed, probs = list[ir.Node](), list[ir.Value](), softmax.outputs[0]
    while (node := _only_user(probs)) is not None and node.op_type != "MatMul":
        if node.op_type == "Where" and number(node.inputs[1]) == 0 and node.inputs[2] is probs and node.inputs[0]:
            zeroed.append(node.inputs[0])
        elif node.op_type == "Transpose":
            after.append(node)
        else:
            return None
        probs = node.outputs[0]
    context = node
    values_first = context is not None and context.inputs[0] is not probs
    # back to the product of queries and keys
    steps, value, reader = list[Step](), softmax.inputs[0], softmax
    is_unusual = bool(after or zeroed or values_first)
    while context is not None and value is not None and (node := value.producer()) is not None:
        several = len(value.uses()) > 1
        if several and not _is_read_by_softmax_alone(value, reader):
            return None
        is_unusual |= several
        if node.op_type == "MatMul" and not node.domain:
            attention = Chain(node, steps[::-1], softmax, after, context, zeroed, values_first, is_unusual)
            return attention if _are_filled(zeroed, steps) else None
        step = _step(node)
        if step is None:
            return None
        if not _subtracts_highest(node):
            steps.append(step)
        is_unusual |= node.op_type == "Transpose" or bool(step.biases)
        value, reader = step.before, node
    return None


def _only_user(value: ir.Value) -> ir.Node | None:
    users = [node for node, _ in value.uses()]
    return users[0] if len(users) == 1 and not value.is_graph_output() and not users[0].domain else None


def _step(node: ir.Node) -> Step | None:
    """The node as a step from scores to scores, None for another operator."""
    if node.domain:
        return None
    if node.op_type == "Reshape":
        return _added_in_another_shape(node)
    operands = (0,) if node.op_type == "Transpose" else _ELEMENTWISE.get(node.op_type, ())
    for at in operands:
        value = node.inputs[at]
        if value is not None and _is_product(value):
            return Step(node, at, value)
    return None


def _is_product(value: ir.Value | None) -> bool:
    """Whether ``value`` is computed from a product by steps alone."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return False
    return node.op_type == "MatMul" or _step(node) is not None


def _added_in_another_shape(node: ir.Node) -> Step | None:
    """``Reshape(Reshape(product) + biases)`` with the shape of the product; None for another Reshape."""
    value, biases = node.inputs[0], list[ir.Value]()
    while value is not None and (add := producer(value, "Add")) is not None and len(value.uses()) == 1:
        scores = next((x for x in add.inputs if _leads_to_product(x)), None)
        biases += [x for x in add.inputs if x is not scores and x is not None]
        value = scores
    inner = producer(value, "Reshape")
    if inner is None or not biases or inner.inputs[0] is None or sizes(inner.inputs[0]) != sizes(node.outputs[0]):
        return None
    # `scores` has heads that are split from the batch; the sum of the biases must have all elements
    full = sizes(node.inputs[0]) or ()
    if len(full) <= _SPLIT_HEADS:
        return None
    shapes = [(1,) * (len(full) - len(shape)) + shape for shape in (sizes(bias) or () for bias in biases)]
    if not all(any(shape[at] == size for shape in shapes) for at, size in enumerate(full)):
        return None
    return Step(node, 0, inner.inputs[0], biases)


def _leads_to_product(value: ir.Value | None) -> bool:
    """Whether ``value`` is a Reshape of a product, with biases added or without."""
    while (add := producer(value, "Add")) is not None:
        value = next((x for x in add.inputs if producer(x, "Add")), None) or next(
            (x for x in add.inputs if producer(x, "Reshape") and _leads_to_product(x)), None
        )
    reshape = producer(value, "Reshape")
    return reshape is not None and _is_product(reshape.inputs[0])


def _subtracts_highest(node: ir.Node) -> bool:
    """Whether the node is ``scores - max(scores)`` over the last axis."""
    highest = producer(node.inputs[1], "ReduceMax") if node.op_type == "Sub" else None
    if highest is None or highest.inputs[0] is not node.inputs[0] or len(highest.inputs) < 2:
        return False
    axes, rank = constant(highest.inputs[1]), len(sizes(node.inputs[0]) or ())
    return axes is not None and axes.tolist() in ([-1], [rank - 1]) and highest.attributes.get_int("keepdims", 1) == 1


def _is_read_by_softmax_alone(value: ir.Value, reader: ir.Node) -> bool:
    """Whether scores are read by the next node, by the maximum that it subtracts, and by other Softmax only."""
    for user, _ in value.uses():
        of_user = [node for node, _ in user.outputs[0].uses()] if user.op_type == "Transpose" else [user]
        for_highest = user.op_type == "ReduceMax" and _subtracts_highest(reader)
        if user is not reader and not for_highest and any(node.op_type != "Softmax" for node in of_user):
            return False
    return not value.is_graph_output()


def _are_filled(zeroed: list[ir.Value], steps: list[Step]) -> bool:
    """Whether the conditions ``zeroed`` drop scores too, in the layout of the probabilities."""
    filled = [step.node.inputs[0] for step in steps if step.node.op_type == "Where" and step.at == 2 and _drops(step)]
    moved = any(step.node.op_type == "Transpose" for step in steps)
    return not zeroed or (not moved and all(any(condition is x for x in filled) for condition in zeroed))


def _drops(step: Step) -> bool:
    fill = number(step.node.inputs[1])
    return fill is not None and bool(drops(fill))

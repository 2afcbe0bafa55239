"""Analysis of the values of a graph or function: which are sizes, which count up, which a device computes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.passes.device.calls_in_common import CallsInCommon, Known, Shape
from posexport.graph.queries import SHAPES, TRUTHS, constant

#: sums of sizes are sizes
SUMS = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")


@dataclass(frozen=True)
class Run:
    """Integers that count: from ``start`` to before ``limit`` (scalars), by ``step`` (1 or -1)."""

    start: ir.Value
    limit: ir.Value
    step: int


class KnownValues:
    """The graph, or a function.

    ``known``: of a function's inputs. ``axes``: which axis of inputs q and k counts tokens. ``aligned``: inputs qpos
    and kpos are all slots of a call: keys count from 0, and the queries are the last of them.
    """

    def __init__(
        self,
        body: ir.Graph | ir.Function,
        known: Mapping[ir.Value, Known],
        axes: Mapping[str, int],
        *,
        aligned: bool,
        calls: CallsInCommon,
    ) -> None:
        self.known = known
        self.body, self.calls, self.aligned = body, calls, aligned
        self.shapes: dict[ir.Value, Shape | None] = {value: facts.size for value, facts in known.items() if facts.size}
        self.runs: dict[ir.Value, Run] = {}
        self.device: dict[ir.Value, bool] = {}
        named = {value.name: value for value in body.inputs}
        self.queries, self.keys = named.get("qpos"), named.get("kpos")
        slots = {"q": self.queries, "k": self.keys}
        #: (tensor, axis of its tokens) -> their slots
        self.slots = {(named[name], axis): slots[name] for name, axis in axes.items()}

    def shape(self, value: ir.Value) -> Shape | None:
        """Of an integer that follows from sizes and constants; None for anything else."""
        if value not in self.shapes:
            self.shapes[value] = None  # ends recursion
            self.shapes[value] = self._shape(value)
        return self.shapes[value]

    def _shape(self, value: ir.Value) -> Shape | None:
        array = few_numbers(value)
        if array is not None:
            is_size = array.size == 1 and array.ndim < 2 and array.dtype == np.int64
            return None if not is_size else "scalar" if array.ndim == 0 else "one"
        node = value.producer()
        inputs = [] if node is None else [value for value in node.inputs if value is not None]
        if node is None or node.domain:  # functions of sizes alone give a size
            return "one" if inputs and None not in [self.shape(operand) for operand in inputs] else None
        if node.op_type == "Shape":
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            whole = inputs[0] in (self.queries, self.keys) or inputs[0] in self.runs or self.is_vector(inputs[0])
            # the last axis: scores and probabilities have four
            last = end is None and start in (-1, 3)
            return "one" if (whole and not start) or last or (end is not None and end - (start or 0) == 1) else None
        shapes = [self.shape(operand) for operand in inputs]
        if node.op_type == "Where":
            shapes[0] = self.on_host(inputs[0])
        if node.op_type in (*SUMS, "Neg", "Where") and None not in shapes:
            return "scalar" if set(shapes) == {"scalar"} else "one"
        if node.op_type == "Squeeze" and shapes[0] is not None:
            return "scalar"
        if node.op_type == "Unsqueeze" and shapes[0] == "one":
            return None  # it has two axes
        if node.op_type in ("Reshape", "Unsqueeze") and shapes[0] is not None:
            sizes = few_numbers(inputs[1])
            return None if sizes is None or sizes.size > 1 else "one" if sizes.size else "scalar"
        return None

    def on_host(self, value: ir.Value) -> Shape | None:
        """`shape`, also of comparisons of sizes and of a size cast to another type."""
        node, shape = value.producer(), self.shape(value)
        if shape is not None or node is None or node.domain:
            return shape
        if node.op_type == "Cast" and node.inputs[0] is not None:
            return self.shape(node.inputs[0])
        shapes = (
            [self.on_host(operand) for operand in node.inputs if operand is not None]
            if node.op_type in TRUTHS
            else [None]
        )
        return None if None in shapes else "scalar" if set(shapes) == {"scalar"} else "one"

    def is_vector(self, value: ir.Value) -> bool:
        """Whether it is known to have one axis."""
        known = self.known.get(value, Known())
        return known.is_vector or (value.shape is not None and len(value.shape) == 1)

    def table(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a weight; None for anything else."""
        if value is None or value.const_value is None:
            return None if value is None else self.known.get(value, Known()).table
        return value.const_value.shape.numpy() if isinstance(value.const_value.shape, ir.Shape) else None

    def known_of(self, value: ir.Value | None) -> Known:
        return Known() if value is None else Known(self.shape(value), self.table(value), self.is_vector(value))

    def on_device(self, value: ir.Value) -> bool:
        """Whether a device computes it: from values that count up, or from elements of the graph's inputs."""
        if value not in self.device:
            node = value.producer()
            inputs = (
                []
                if node is None or node.op_type in SHAPES
                else [operand for operand in node.inputs if operand is not None]
            )
            slots = value in self.runs or value in (self.queries, self.keys)
            fed = value.is_graph_input() and isinstance(self.body, ir.Graph)
            self.device[value] = slots or fed or any(map(self.on_device, inputs))
        return self.device[value]

    def sum_of(self, value: ir.Value) -> dict[object, int] | None:
        """A size as a sum: how often each size of a tensor is in it, and a number."""
        array = few_numbers(value)
        if array is not None:
            return {1: int(array.reshape(()))} if array.size == 1 else None
        node = value.producer()
        if self.shape(value) is None or node is None:
            return None
        if node.op_type == "Shape":
            return {(node.inputs[0], node.attributes.get_int("start", 0)): 1}
        parts = [self.sum_of(operand) for operand in node.inputs if operand is not None]
        if node.op_type in ("Squeeze", "Reshape", "Unsqueeze"):
            return parts[0]
        if node.op_type not in ("Add", "Sub") or parts[0] is None or parts[1] is None:
            return {value: 1}
        sign = 1 if node.op_type == "Add" else -1
        total = {key: parts[0].get(key, 0) + sign * parts[1].get(key, 0) for key in {**parts[0], **parts[1]}}
        return {key: count for key, count in total.items() if count}

    def is_aligned(self, node: ir.Node) -> bool:
        """Whether a call's last inputs, or those that a function calls so, are all slots of a call."""
        # positions are the last inputs of operators and of attention
        slots = node.inputs[-2:]
        if len(slots) < 2 or None in slots:
            return False
        queries, keys = slots
        assert queries is not None
        assert keys is not None
        if self.aligned and (queries, keys) == (self.queries, self.keys):
            return True
        of_queries, of_keys = self.runs.get(queries), self.runs.get(keys)
        if of_queries is None or of_keys is None or (of_queries.step, of_keys.step) != (1, 1):
            return False
        ends = self.sum_of(of_queries.limit), self.sum_of(of_keys.limit)
        return self.sum_of(of_keys.start) in ({}, {1: 0}) and ends[0] is not None and ends[0] == ends[1]


def few_numbers(value: ir.Value | None):  # type: ignore[no-untyped-def]
    """The few numbers of an initialiser or of a Constant, also in the type of another value."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "CastLike" and not node.domain:
        return few_numbers(node.inputs[0])
    if node is not None and node.op_type == "Constant" and not node.domain:
        (attribute,) = node.attributes.values()
        array = ir.tensor(attribute.value) if attribute.type != ir.AttributeType.TENSOR else attribute.as_tensor()
        return array.numpy() if array.size <= 16 else None
    return constant(value)


def is_count(value: ir.Value) -> bool:
    """Whether it is at least 0, by a Clip that it comes from."""
    node = value.producer()
    while node is not None and not node.domain and node.op_type in ("Gather", "Reshape", "Squeeze", "Unsqueeze"):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    least = few_numbers(node.inputs[1]) if node is not None and node.op_type == "Clip" and not node.domain else None
    return least is not None and bool(least >= 0)

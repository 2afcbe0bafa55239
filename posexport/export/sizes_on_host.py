"""Positions that count up and the sizes that follow from them, written so that no device is asked for them.

Slots of tokens are a Range plus what is cached. A device computes them, and where their first one decides where a Slice
or Pad begins, the host waits for a copy; a size that is added to them is copied the other way, which a CUDA graph does
not allow. Both are sums of sizes, which the host knows: what counts up becomes one Range of such sums, its first and
last elements these sums. In the position operators, called with all queries and keys of a call, where the queries are
the last of the keys, the first query stands at the number of keys minus that of queries.

Values are the same integers. For targets whose provider computes on a device; other graphs stay as they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.export.calls_in_common import CallsInCommon, Known, Shape, callers_first
from posexport.export.token_axes import token_axes
from posexport.graph.operators import COMPARISONS, SHAPES, TRUTHS
from posexport.graph.queries import constant, only
from posexport.ops.operator import DOMAIN
from posexport.ops.spec import NodeSpec
from posexport.targets.target import Target

_SUMS = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")
#: of a size and what a device holds, they are computed there
_MIXED = (*_SUMS, *COMPARISONS, "Concat", "Where", "And", "Or")


@dataclass(frozen=True)
class _Run:
    """Integers that count: from ``start`` to before ``limit`` (scalars), by ``step`` (1 or -1)."""

    start: ir.Value
    limit: ir.Value
    step: int


def settle(model: ir.Model, target: Target, specs: Mapping[str, NodeSpec]) -> None:
    """Rewrite the graph and the functions that it calls, each as all of its calls allow.

    ``specs``: what the functions compute that stand for a record, by their names.
    """
    if not target.waits_to_branch:
        return
    calls = CallsInCommon()
    _Body(model.graph, {}, {}, aligned=False, calls=calls).rewrite()
    # callers before the functions that they call
    for function in callers_first(model):
        known, axes = calls.inputs_of(function), token_axes(function, specs)
        _Body(function, known, axes, aligned=calls.are_aligned(function), calls=calls).rewrite()
    RemoveUnusedNodesPass()(model)


class _Body:
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
        self.shapes: dict[ir.Value, Shape | None] = {value: each.size for value, each in known.items() if each.size}
        self.runs: dict[ir.Value, _Run] = {}
        self.device: dict[ir.Value, bool] = {}
        named = {value.name: value for value in body.inputs}
        self.queries, self.keys = named.get("qpos"), named.get("kpos")
        slots = {"q": self.queries, "k": self.keys}
        #: of tensors and their axis of tokens the slots that stand for these
        self.slots = {(named[name], axis): slots[name] for name, axis in axes.items()}

    def rewrite(self) -> None:
        for node in list(ir.traversal.RecursiveGraphIterator(self.body)):
            if node.graph is None:  # replaced with another one
                continue
            if node.domain == DOMAIN:
                aligned, distances = self._is_aligned(node), node.op_type == "Distances"
                known = [Known() if distances else self._known(value) for value in node.inputs]
                self.calls.note(node, known, aligned=aligned)
                if aligned and distances:
                    self._distances(node)
            elif not node.domain:
                self._standard(node)

    def _standard(self, node: ir.Node) -> None:
        match node.op_type:
            case "Shape":
                self._counted(node)
            case "Range":
                step = few_numbers(node.inputs[2])
                start, limit = node.inputs[:2]
                ends = {None if each is None else self.shape(each) for each in (start, limit)}
                if step is not None and abs(int(step)) == 1 and ends == {"scalar"}:
                    assert start is not None
                    assert limit is not None
                    self.runs[node.outputs[0]] = _Run(start, limit, int(step))
            case "Add" | "Sub":
                self._moved(node)
            case "Gather":
                self._picked(node)
            case "Slice":
                self._sliced(node)
            case "Min":
                self._clipped(node)
        if node.op_type in _MIXED and any(each is not None and self.on_device(each) for each in node.inputs):
            self._brought(node, range(len(node.inputs)))
        elif node.op_type == "Expand":
            self._brought(node, [0])

    # what there is

    def shape(self, value: ir.Value) -> Shape | None:
        """Of an integer that follows from sizes and constants; None for anything else."""
        if value not in self.shapes:
            self.shapes[value] = None  # of what is asked for while it is found
            self.shapes[value] = self._shape(value)
        return self.shapes[value]

    def _shape(self, value: ir.Value) -> Shape | None:
        array = few_numbers(value)
        if array is not None:
            return None if array.size != 1 or array.dtype != np.int64 else "scalar" if array.ndim == 0 else "one"
        node = value.producer()
        inputs = [] if node is None else [each for each in node.inputs if each is not None]
        if node is None or node.domain:  # functions of sizes alone give a size
            return "one" if inputs and None not in [self.shape(each) for each in inputs] else None
        if node.op_type == "Shape":
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            whole = inputs[0] in (self.queries, self.keys) or inputs[0] in self.runs or self.is_vector(inputs[0])
            # the last axis: scores and probabilities have four
            last = end is None and start in (-1, 3)
            return "one" if (whole and not start) or last or (end is not None and end - (start or 0) == 1) else None
        given = [self.shape(each) for each in inputs]
        if node.op_type == "Where":
            given[0] = self.on_host(inputs[0])
        if node.op_type in (*_SUMS, "Neg", "Where") and None not in given:
            return "scalar" if set(given) == {"scalar"} else "one"
        if node.op_type == "Squeeze" and given[0] is not None:
            return "scalar"
        if node.op_type in ("Reshape", "Unsqueeze") and given[0] is not None:
            sizes = few_numbers(inputs[1])
            return None if sizes is None or sizes.size > 1 else "one" if sizes.size else "scalar"
        return None

    def on_host(self, value: ir.Value) -> Shape | None:
        """`shape`, also of what sizes decide and of a size in another type."""
        node, shape = value.producer(), self.shape(value)
        if shape is not None or node is None or node.domain:
            return shape
        if node.op_type == "Cast" and node.inputs[0] is not None:
            return self.shape(node.inputs[0])
        given = [self.on_host(each) for each in node.inputs if each is not None] if node.op_type in TRUTHS else [None]
        return None if None in given else "scalar" if set(given) == {"scalar"} else "one"

    def is_vector(self, value: ir.Value) -> bool:
        """Whether it is known to have one axis."""
        known = self.known.get(value, Known())
        return known.is_vector or (value.shape is not None and len(value.shape) == 1)

    def table(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a weight; None for anything else."""
        if value is None or value.const_value is None:
            return None if value is None else self.known.get(value, Known()).table
        return value.const_value.shape.numpy() if isinstance(value.const_value.shape, ir.Shape) else None

    def _known(self, value: ir.Value | None) -> Known:
        return Known() if value is None else Known(self.shape(value), self.table(value), self.is_vector(value))

    def on_device(self, value: ir.Value) -> bool:
        """Whether it is made of what counts, or of the graph's inputs: a device computes it."""
        if value not in self.device:
            node = value.producer()
            inputs = (
                [] if node is None or node.op_type in SHAPES else [each for each in node.inputs if each is not None]
            )
            slots = value in self.runs or value in (self.queries, self.keys)
            fed = value.is_graph_input() and isinstance(self.body, ir.Graph)
            self.device[value] = slots or fed or any(map(self.on_device, inputs))
        return self.device[value]

    def _sum(self, value: ir.Value) -> dict[object, int] | None:
        """A size as a sum: how often each size of a tensor is in it, and a number."""
        array = few_numbers(value)
        if array is not None:
            return {1: int(array.reshape(()))} if array.size == 1 else None
        node = value.producer()
        if self.shape(value) is None or node is None:
            return None
        if node.op_type == "Shape":
            return {(node.inputs[0], node.attributes.get_int("start", 0)): 1}
        parts = [self._sum(each) for each in node.inputs if each is not None]
        if node.op_type in ("Squeeze", "Reshape", "Unsqueeze"):
            return parts[0]
        if node.op_type not in ("Add", "Sub") or parts[0] is None or parts[1] is None:
            return {value: 1}
        sign = 1 if node.op_type == "Add" else -1
        total = {key: parts[0].get(key, 0) + sign * parts[1].get(key, 0) for key in {**parts[0], **parts[1]}}
        return {key: count for key, count in total.items() if count}

    def _is_aligned(self, node: ir.Node) -> bool:
        """Whether a call's last inputs, or those that a function calls so, are all slots of a call."""
        # positions stand last in operators and attention alike
        found = node.inputs[-2:] if node.op_type != "CachedCalls" else node.inputs[1:3]
        if len(found) < 2 or None in found:
            return False
        queries, keys = found
        assert queries is not None
        assert keys is not None
        if self.aligned and (queries, keys) == (self.queries, self.keys):
            return True
        of_queries, of_keys = self.runs.get(queries), self.runs.get(keys)
        if of_queries is None or of_keys is None or (of_queries.step, of_keys.step) != (1, 1):
            return False
        ends = self._sum(of_queries.limit), self._sum(of_keys.limit)
        return self._sum(of_keys.start) in ({}, {1: 0}) and ends[0] is not None and ends[0] == ends[1]

    # what is written

    def _new(self, before: ir.Node, op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes)  # type: ignore[arg-type]
        assert before.graph is not None
        before.graph.insert_before(before, node)
        value = node.outputs[0]
        value.type = ir.TensorType(ir.DataType.INT64)
        return value

    def _int(self, before: ir.Node, number: int) -> ir.Value:
        return self._new(before, "Constant", value_int=number)

    def _scalar(self, before: ir.Node, value: ir.Value) -> ir.Value:
        return value if self.shape(value) == "scalar" else self._new(before, "Squeeze", value)

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        value.shape = node.outputs[0].shape
        ir.convenience.replace_all_uses_with(node.outputs[0], value, replace_graph_outputs=True)

    def _counting(self, node: ir.Node, run: _Run) -> None:
        """A Range in the place of ``node``."""
        value = self._new(node, "Range", run.start, run.limit, self._int(node, run.step))
        self.runs[value] = run
        self._replace(node, value)

    def _distances(self, node: ir.Node) -> None:
        """``Distances(qpos, kpos)``: from the number of keys down to minus the number of queries."""
        queries, keys = node.inputs
        assert queries is not None
        assert keys is not None
        start = self._new(node, "Squeeze", self._new(node, "Shape", keys))
        new = self._new(node, "Squeeze", self._new(node, "Shape", queries))
        limit = self._new(node, "Sub", self._int(node, -1), new)
        self._counting(node, _Run(start, limit, -1))

    def _moved(self, node: ir.Node) -> None:
        """What counts plus or minus a size, or a size minus it."""
        first, second = node.inputs
        assert first is not None
        assert second is not None
        run, by = self.runs.get(first), second
        if run is None:
            run, by = self.runs.get(second), first
        if run is None or self.shape(by) is None:
            return
        amount, backwards = self._scalar(node, by), node.op_type == "Sub" and by is first

        def moved(value: ir.Value) -> ir.Value:
            pair = (amount, value) if backwards else (value, amount)
            return self._new(node, node.op_type, *pair)

        self._counting(node, _Run(moved(run.start), moved(run.limit), -run.step if backwards else run.step))

    def _picked(self, node: ir.Node) -> None:
        """The first or the last element of what counts."""
        source, index = node.inputs[:2]
        run, at = self.runs.get(source) if source is not None else None, few_numbers(index)
        if run is None or at is None or at.ndim or int(at) not in (0, -1):
            return
        self._replace(node, self._last(node, run) if int(at) else run.start)

    def _last(self, before: ir.Node, run: _Run) -> ir.Value:
        return self._new(before, "Sub", run.limit, self._int(before, run.step))

    def _counted(self, node: ir.Node) -> None:
        """How many tokens queries or keys have, by their slots, and rows a table: the same in all layers, so once."""
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        value, table = node.inputs[0], self.table(node.inputs[0])
        slots = None if value is None or end != start + 1 else self.slots.get((value, start))
        if slots is not None:
            self._replace(node, self._new(node, "Shape", slots))
        elif table is not None and len(table[start:end]) == 1:
            self._replace(node, self._new(node, "Constant", value_ints=list(table[start:end])))

    def _sliced(self, node: ir.Node) -> None:
        """``Slice(x, [0], [1])`` and ``Slice(x, [-1], [end])`` of slots."""
        source, bounds = node.inputs[0], [few_numbers(value) for value in node.inputs[1:]]
        if source is None or any(each is None or each.size != 1 for each in bounds):
            return
        start, end, *axis_and_step = [int(each.reshape(())) for each in bounds if each is not None]
        if axis_and_step != [0, 1][: len(axis_and_step)]:
            return
        first, run = (start, end) == (0, 1), self.runs.get(source)
        if run is not None and (first or (start == -1 and end >= np.iinfo(np.int32).max)):
            picked = run.start if first else self._last(node, run)
            self._replace(node, self._new(node, "Reshape", picked, self._new(node, "Constant", value_ints=[1])))
        elif first and self.aligned and source is self.keys:
            self._replace(node, self._new(node, "Constant", value_ints=[0]))
        elif first and self.aligned and source is self.queries and self.keys is not None:
            sizes = self._new(node, "Shape", self.keys), self._new(node, "Shape", self.queries)
            self._replace(node, self._new(node, "Sub", *sizes))

    def _brought(self, node: ir.Node, indices: Iterable[int]) -> None:
        """What the host knows among those inputs, written by a device: nothing is copied."""
        if not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):  # replaced
            return
        alone = node.outputs[0].shape is not None and not len(node.outputs[0].shape)
        for index in indices:
            value = node.inputs[index]
            if value is None or self.on_host(value) is None or few_numbers(value) is not None:
                continue
            written = self._written(node, value)
            node.replace_input_with(index, self._new(node, "Squeeze", written) if alone else written)

    def _written(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """A size as a Range of one element, which a kernel writes; anything else as a cast of one."""
        made, shape = value.producer(), self.shape(value)
        if shape is not None:
            start, one = self._scalar(before, value), self._int(before, 1)
            return self._new(before, "Range", start, self._new(before, "Add", start, one), one)
        assert made is not None
        if made.op_type == "Cast" and made.inputs[0] is not None:
            size, kind = made.inputs[0], ir.DataType(made.attributes.get_int("to"))
        else:
            size, kind = self._new(before, "Cast", value, to=ir.DataType.INT64), ir.DataType.BOOL
            self.shapes[size] = self.on_host(value)
        written = self._new(before, "Cast", self._written(before, size), to=kind)
        written.type = ir.TensorType(kind)
        return written

    def _clipped(self, least: ir.Node) -> None:
        """``Max(Min(x, size), size)`` as Clip, whose bounds are read on the host."""
        node = only(least.outputs[0])
        if node is None or node.domain or node.op_type != "Max" or len(node.inputs) != 2 or len(least.inputs) != 2:
            return
        values, most, low = least.inputs[0], least.inputs[1], node.inputs[1]
        if values is None or most is None or low is None or values not in self.runs:
            return
        if few_numbers(most) is not None or self.shape(most) is None or self.shape(low) is None:
            return
        clipped = self._new(node, "Clip", values, self._scalar(node, low), self._scalar(node, most))
        self._replace(node, clipped)
        least.graph.remove([node, least], safe=True)  # type: ignore[union-attr]


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

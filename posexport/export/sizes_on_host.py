"""Positions that count up and the sizes that follow from them, written so that no device is asked for them.

Slots of tokens are a Range plus what is cached. A device computes them, and where their first one decides where a Slice
or Pad begins, the host waits for a copy; a size that is added to them is copied the other way, which a CUDA graph does
not allow. Both are sums of sizes, which the host knows: what counts up becomes one Range of such sums, its first and
last elements these sums. In the position operators, called with all queries and keys of a call, where the queries are
the last of the keys, the first query stands at the number of keys minus that of queries.

Values are the same integers. For targets whose provider computes on a device; other graphs stay as they are.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.export.calls_in_common import CallsInCommon, Known, callers_first
from posexport.export.known_values import SUMS, KnownValues, Run, few_numbers, is_count
from posexport.export.token_axes import token_axes
from posexport.graph.operators import COMPARISONS
from posexport.graph.queries import only
from posexport.ops.operator import DOMAIN
from posexport.ops.spec import NodeSpec
from posexport.targets.target import Target

#: of a size and what a device holds, they are computed there
_MIXED = (*SUMS, *COMPARISONS, "Concat", "Where", "And", "Or")


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


class _Body(KnownValues):
    """The graph, or a function."""

    def rewrite(self) -> None:
        for node in list(ir.traversal.RecursiveGraphIterator(self.body)):
            if node.graph is None:  # replaced with another one
                continue
            if node.domain == DOMAIN:
                aligned, distances = self.is_aligned(node), node.op_type == "Distances"
                known = [Known() if distances else self.known_of(value) for value in node.inputs]
                self.calls.note(node, known, aligned=aligned)
                if aligned and distances:
                    self._distances(node)
            elif not node.domain:
                self._standard(node)

    def _standard(self, node: ir.Node) -> None:
        rewrites = {
            "Shape": self._counted,
            "Range": self._ranged,
            "Add": self._moved,
            "Sub": self._moved,
            "Gather": self._picked,
            "Slice": self._sliced,
            "Min": self._clipped,
            "Clip": self._bounded,
        }
        if node.op_type in rewrites:
            rewrites[node.op_type](node)
        if node.op_type in _MIXED and any(each is not None and self.on_device(each) for each in node.inputs):
            self._brought(node, range(len(node.inputs)))
        elif node.op_type == "Expand":
            self._brought(node, [0])

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
        if node.outputs[0].is_graph_output():
            value.name, node.outputs[0].name = node.outputs[0].name, None
        ir.convenience.replace_all_uses_with(node.outputs[0], value, replace_graph_outputs=True)

    def _counting(self, node: ir.Node, run: Run) -> None:
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
        self._counting(node, Run(start, limit, -1))

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

        self._counting(node, Run(moved(run.start), moved(run.limit), -run.step if backwards else run.step))

    def _picked(self, node: ir.Node) -> None:
        """The first or the last element of what counts."""
        source, index = node.inputs[:2]
        run, at = self.runs.get(source) if source is not None else None, few_numbers(index)
        if run is None or at is None or at.ndim or int(at) not in (0, -1):
            return
        self._replace(node, self._last(node, run) if int(at) else run.start)

    def _last(self, before: ir.Node, run: Run) -> ir.Value:
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
            if alone:
                kind, written = written.type, self._new(node, "Squeeze", written)
                written.type = kind
            node.replace_input_with(index, written)

    def _written(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """A size as a Range of one element, which a kernel writes; anything else as a cast of one."""
        source, shape = value.producer(), self.shape(value)
        if shape is not None:
            start, one = self._scalar(before, value), self._int(before, 1)
            return self._new(before, "Range", start, self._new(before, "Add", start, one), one)
        assert source is not None
        if source.op_type == "Cast" and source.inputs[0] is not None:
            size, kind = source.inputs[0], ir.DataType(source.attributes.get_int("to"))
        else:
            size, kind = self._new(before, "Cast", value, to=ir.DataType.INT64), ir.DataType.BOOL
            self.shapes[size] = self.on_host(value)
        written = self._new(before, "Cast", self._written(before, size), to=kind)
        written.type = ir.TensorType(kind)
        return written

    def _ranged(self, node: ir.Node) -> None:
        """Notes what counts by one, between sizes."""
        start, limit = node.inputs[:2]
        step = few_numbers(node.inputs[2])
        if start is None or limit is None or step is None or abs(int(step)) != 1:
            return
        if self.shape(start) == self.shape(limit) == "scalar":
            self.runs[node.outputs[0]] = Run(start, limit, int(step))
        elif int(step) == 1 and few_numbers(start) == 0 and is_count(limit):
            self._awaited(node, limit)

    def _awaited(self, node: ir.Node, limit: ir.Value) -> None:
        """What a device computes and a Range from 0 waits for is known by the length of the Range from there on."""
        assert node.graph is not None
        order = {each: number for number, each in enumerate(node.graph)}
        size, scalar = ir.node("Shape", node.outputs), ir.node("Squeeze", [None])
        scalar.replace_input_with(0, size.outputs[0])
        scalar.outputs[0].shape, scalar.outputs[0].type = limit.shape, limit.type
        for user, place in limit.uses():
            if order.get(user, -1) > order[node]:
                user.replace_input_with(place, scalar.outputs[0])
        node.graph.insert_after(node, [size, scalar])
        self.shapes |= {size.outputs[0]: "one", scalar.outputs[0]: "scalar"}

    def _bounded(self, node: ir.Node) -> None:
        """Clip at sizes, which would be copied to the device, as Max and Min."""
        values, *bounds = node.inputs
        if values is None or not self.on_device(values) or None in [self.on_host(each) for each in bounds if each]:
            return
        if all(each is None or few_numbers(each) is not None for each in bounds):
            return
        written: list[ir.Value] = []
        for op_type, bound in zip(("Max", "Min"), bounds, strict=False):
            if bound is not None:
                values = self._new(node, op_type, values, bound)
                values.shape, values.type = node.outputs[0].shape, node.outputs[0].type
                written.append(values)
        self._replace(node, values)
        for each in written:
            node_before = each.producer()
            assert node_before is not None
            self._brought(node_before, [1])

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

"""Computes ranges of positions, and sizes that follow from them, on the host, without copies from the device."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN, OPERATORS, WHOLE
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.passes.device.calls_in_common import CallsInCommon, Known, callers_first
from posexport.graph.passes.device.known_values import SUMS, KnownValues, Run, few_numbers, is_count
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.queries import COMPARISONS, only

#: operators that run on the device if one operand is there
_MIXED = (*SUMS, *COMPARISONS, "Concat", "Where", "And", "Or")


def _token_axes(function: ir.Function, specs: Mapping[str, NodeSpec]) -> dict[str, int]:
    """The axis of tokens in a function's inputs ``q`` (as in ``qpos``) and ``k`` (as in ``kpos``), where known.

    Heads are split or packed. There are as many keys as key positions only without a KV cache: with a dynamic cache the
    input is new keys only, and a static cache has unused slots.

    ``specs``: the specs of functions by name; position operators always have split heads.
    """
    operator = OPERATORS.get(function.name) or OPERATORS.get(function.name.removeprefix(WHOLE))
    if operator is not None:
        return {name: 2 for name in ("q", "k") if name in operator.takes}
    spec = specs.get(function.name)
    if not isinstance(spec, AttentionSpec):
        return {}
    axis = 1 if spec.packed else 2
    return {"q": axis, "k": axis} if spec.cache == "none" else {"q": axis}


class SizesOnHost(GraphPass):
    """Rewrite position arithmetic as one Range between sizes, and its first and last elements as sums of sizes.

    Before: ``Gather(Add(Range(0, T, 1), past), 0) -> Slice(x, ..)``
    After:  ``past -> Slice(x, ..)``, and ``Range(past, T + past, 1)`` for readers of all elements

    Slots of tokens are a Range plus the past length, computed on the device. If the first slot is the start of a Slice
    or Pad, the host waits for a copy; a size that is added to slots is copied to the device, which a CUDA graph does
    not allow. Both are sums of sizes, which the host knows. In position operators that are called with all queries and
    keys, the queries are the last keys, so the slot of the first query is the number of keys minus the number of
    queries. The integers are the same. A function is rewritten only as far as all of its calls allow.
    """

    name = "sizes-on-host"
    description = "positions and what follows from them as sums of sizes, which the host knows"
    phase = "device"

    def concerns(self, context: Context) -> bool:
        return context.target.waits_to_branch

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts replaced nodes and inputs."""
        calls, opset = CallsInCommon(), model.opset_imports[""]
        bodies = [_Body(model.graph, {}, {}, aligned=False, calls=calls)]
        bodies[0].rewrite(opset)
        # callers before the functions that they call
        for function in callers_first(model):
            known, axes = calls.inputs_of(function), _token_axes(function, context.specs)
            bodies.append(_Body(function, known, axes, aligned=calls.are_aligned(function), calls=calls))
            bodies[-1].rewrite(opset)
        return PassResult(sum(body.changed for body in bodies))


class _Body(KnownValues):
    """A graph or function; ``changed`` counts replaced nodes and inputs that a kernel now writes on the device."""

    changed = 0

    def rewrite(self, opset: int) -> None:
        for node in list(ir.traversal.RecursiveGraphIterator(self.body)):
            if node.graph is None:  # replaced with another one
                continue
            g = Builder.at(node, opset=opset)
            if node.domain == DOMAIN:
                aligned, distances = self.is_aligned(node), node.op_type == "Distances"
                known = [Known() if distances else self.known_of(value) for value in node.inputs]
                self.calls.note(node, known, aligned=aligned)
                if aligned and distances:
                    self._distances(g, node)
            elif not node.domain:
                self._standard(g, node)

    def _standard(self, g: Builder, node: ir.Node) -> None:
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
            rewrites[node.op_type](g, node)
        if node.op_type in _MIXED and any(operand is not None and self.on_device(operand) for operand in node.inputs):
            self._brought(g, node, range(len(node.inputs)))
        elif node.op_type == "Expand":
            self._brought(g, node, [0])

    def _scalar(self, g: Builder, value: ir.Value) -> ir.Value:
        return value if self.shape(value) == "scalar" else g.Squeeze(value)

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        self.changed += 1
        value.shape = node.outputs[0].shape
        if node.outputs[0].is_graph_output():
            value.name, node.outputs[0].name = node.outputs[0].name, None
        ir.convenience.replace_all_uses_with(node.outputs[0], value, replace_graph_outputs=True)

    def _counting(self, g: Builder, node: ir.Node, run: Run) -> None:
        """Replace ``node`` by a Range, and record it."""
        value = g.Range(run.start, run.limit, run.step)
        self.runs[value] = run
        self._replace(node, value)

    def _distances(self, g: Builder, node: ir.Node) -> None:
        """``Distances(qpos, kpos)``: from the number of keys down to minus the number of queries."""
        queries, keys = node.inputs
        start, new = g.Squeeze(g.Shape(keys)), g.Squeeze(g.Shape(queries))
        self._counting(g, node, Run(start, g.Sub(-1, new), -1))

    def _moved(self, g: Builder, node: ir.Node) -> None:
        """A Range plus or minus a size, or a size minus a Range, as a Range."""
        first, second = node.inputs
        assert first is not None
        assert second is not None
        run, by = self.runs.get(first), second
        if run is None:
            run, by = self.runs.get(second), first
        if run is None or self.shape(by) is None:
            return
        amount, backwards = self._scalar(g, by), node.op_type == "Sub" and by is first

        def moved(value: ir.Value) -> ir.Value:
            return g.op(node.op_type, *((amount, value) if backwards else (value, amount)))

        self._counting(g, node, Run(moved(run.start), moved(run.limit), -run.step if backwards else run.step))

    def _picked(self, g: Builder, node: ir.Node) -> None:
        """Gather of the first or last element of a Range, as a size."""
        source, index = node.inputs[:2]
        run, at = self.runs.get(source) if source is not None else None, few_numbers(index)
        if run is None or at is None or at.ndim or int(at) not in (0, -1):
            return
        self._replace(node, g.Sub(run.limit, run.step) if int(at) else run.start)

    def _counted(self, g: Builder, node: ir.Node) -> None:
        """Shape of queries, keys or a table: read from the slots or a constant, which all layers share."""
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        value, table = node.inputs[0], self.table(node.inputs[0])
        slots = None if value is None or end != start + 1 else self.slots.get((value, start))
        if slots is not None:
            self._replace(node, g.Shape(slots))
        elif table is not None and len(table[start:end]) == 1:
            self._replace(node, g.Constant(value_ints=list(table[start:end])))

    def _sliced(self, g: Builder, node: ir.Node) -> None:
        """``Slice(x, [0], [1])`` and ``Slice(x, [-1], [end])`` of slots, as sizes."""
        source, bounds = node.inputs[0], [few_numbers(value) for value in node.inputs[1:]]
        if source is None or any(bound is None or bound.size != 1 for bound in bounds):
            return
        start, end, *axis_and_step = [int(bound.reshape(())) for bound in bounds if bound is not None]
        if axis_and_step != [0, 1][: len(axis_and_step)]:
            return
        first, run = (start, end) == (0, 1), self.runs.get(source)
        if run is not None and (first or (start == -1 and end >= np.iinfo(np.int32).max)):
            self._replace(node, g.Reshape(run.start if first else g.Sub(run.limit, run.step), [1]))
        elif first and self.aligned and source is self.keys:
            self._replace(node, g.Constant(value_ints=[0]))
        elif first and self.aligned and source is self.queries and self.keys is not None:
            self._replace(node, g.Sub(g.Shape(self.keys), g.Shape(self.queries)))

    def _brought(self, g: Builder, node: ir.Node, indices: Iterable[int]) -> None:
        """Let a kernel write the host's sizes among these inputs on the device, so that nothing is copied."""
        if not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):  # replaced
            return
        alone = node.outputs[0].shape is not None and not len(node.outputs[0].shape)
        for index in indices:
            value = node.inputs[index]
            if value is None or self.on_host(value) is None or few_numbers(value) is not None:
                continue
            on_device, self.changed = self._on_device(g, value), self.changed + 1
            node.replace_input_with(index, g.Squeeze(on_device) if alone else on_device)

    def _on_device(self, g: Builder, value: ir.Value) -> ir.Value:
        """A size as a Range of one element, which a kernel writes; a comparison or cast of sizes as a Cast of it."""
        source, shape = value.producer(), self.shape(value)
        if shape is not None:
            start = self._scalar(g, value)
            return g.Range(start, g.Add(start, 1), 1)
        assert source is not None
        if source.op_type == "Cast" and source.inputs[0] is not None:
            size, kind = source.inputs[0], ir.DataType(source.attributes.get_int("to"))
        else:
            size, kind = g.Cast(value, to=ir.DataType.INT64), ir.DataType.BOOL
            self.shapes[size] = self.on_host(value)
        return g.Cast(self._on_device(g, size), to=kind)

    def _ranged(self, g: Builder, node: ir.Node) -> None:
        """Record Ranges between sizes with step 1 or -1."""
        start, limit = node.inputs[:2]
        step = few_numbers(node.inputs[2])
        if start is None or limit is None or step is None or abs(int(step)) != 1:
            return
        if self.shape(start) == self.shape(limit) == "scalar":
            self.runs[node.outputs[0]] = Run(start, limit, int(step))
        elif int(step) == 1 and few_numbers(start) == 0 and is_count(limit):
            self._awaited(Builder.at(node, after=True, opset=g.opset), node, limit)

    def _awaited(self, g: Builder, node: ir.Node, limit: ir.Value) -> None:
        """Replace later uses of the limit of a Range by the length of its output, which the host knows by then.

        The limit is on the device, and the Range waits for it anyway.
        """
        assert node.graph is not None
        order = {following: number for number, following in enumerate(node.graph)}
        size = g.Shape(node.outputs[0])
        scalar = g.op("Squeeze", size, shape=limit.shape)
        self.changed += 1
        for user, place in limit.uses():
            if order.get(user, -1) > order[node]:
                user.replace_input_with(place, scalar)
        self.shapes |= {size: "one", scalar: "scalar"}

    def _bounded(self, g: Builder, node: ir.Node) -> None:
        """Clip with sizes as bounds, which would be copied to the device, as Max and Min."""
        values, *bounds = node.inputs
        if values is None or not self.on_device(values) or None in [self.on_host(bound) for bound in bounds if bound]:
            return
        if all(bound is None or few_numbers(bound) is not None for bound in bounds):
            return
        clips: list[ir.Node] = []
        for op_type, bound in zip(("Max", "Min"), bounds, strict=False):
            if bound is not None:
                values = g.op(op_type, values, bound, shape=node.outputs[0].shape)
                clips += [clip for clip in [values.producer()] if clip is not None]
        self._replace(node, values)
        for clip in clips:
            self._brought(Builder.at(clip, opset=g.opset), clip, [1])

    def _clipped(self, g: Builder, least: ir.Node) -> None:
        """``Max(Min(x, size), size)`` as Clip, which reads its bounds on the host."""
        node = only(least.outputs[0])
        if node is None or node.domain or node.op_type != "Max" or len(node.inputs) != 2 or len(least.inputs) != 2:
            return
        values, most, low = least.inputs[0], least.inputs[1], node.inputs[1]
        if values is None or most is None or low is None or values not in self.runs:
            return
        if few_numbers(most) is not None or self.shape(most) is None or self.shape(low) is None:
            return
        g = Builder.at(node, opset=g.opset)
        self._replace(node, g.Clip(values, self._scalar(g, low), self._scalar(g, most)))
        node.graph.remove([node, least], safe=True)  # type: ignore[union-attr]

"""The guards: inputs of sizes that the model does not take make the graph fail, on every provider, saying why.

ONNX has no assertion. ``Reshape(input, [b, l + (l > limit)])`` is one: within the limit it changes nothing, beyond it
the number of elements cannot match, and the runtime names the failing node; its name is the message. Shapes
are computed on the host, so it fails on CUDA as on the CPU. Every consumer of the input, ``Shape`` included, reads the
guarded value: a guard off the main path would be pruned, or overtaken by the error (or the silence) of the Gather of
the table.
"""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from posexport.base.bounds import CACHE_FULL, MASK_MISFIT, POSITION_BEYOND, Bound
from posexport.base.spec import CAPACITY, PAST, SEQUENCE, TOTAL, InputSpec
from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult
from posexport.graph.passes.guard import table_guard


class SizeGuard(GraphPass):
    """Guards of every input that has a bound's axis, of a decoder's mask, and of positions that are inputs.

    Before: ``input_ids [B, T] -> Shape, Gather ..``
    After:  ``Reshape(input_ids, Shape(input_ids) + [0, T > limit]) -> Shape, Gather ..``

    It runs after all passes that could move or drop nodes. Past tokens, where there is a cache, count with those of
    ``sequence_length``. For a target on a device, what position tables hold is guarded, not the positions
    (`posexport.graph.passes.guard.table_guard`).
    """

    name = "guard"
    description = "inputs of sizes that the model does not take fail with the reason as the failing node's name"
    phase = "guard"
    is_listed_idle = False

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts guards."""
        return PassResult(insert(model, context.inputs, context.bounds, context.target))


def insert(model: ir.Model, inputs: Sequence[InputSpec], bounds: Sequence[Bound], target: Target | None = None) -> int:
    """Guard the inputs of ``model``; returns how many guards there are."""
    graph, guards = model.graph, 0
    places = _Places(graph, list(zip(graph.inputs, inputs, strict=False)))
    for bound in bounds:
        text = bound.message
        for value, spec in places.pairs:
            # an input that may be left out is one element then
            if bound.axis in spec.axes and value.uses() and not (bound.kind == "minimum" and spec.default is not None):

                def wrong(g: Builder, bound: Bound = bound, guarded: ir.Value = value) -> ir.Value:
                    if bound.kind == "multiple":
                        return g.Greater(g.Mod(places.size(g, bound.axis, guarded), [bound.number]), [0])
                    length = places.total(g) if bound.axis == SEQUENCE and bound.kind != "minimum" else None
                    length = length or places.size(g, bound.axis, guarded)
                    return g.op("Less" if bound.kind == "minimum" else "Greater", length, [bound.number])

                _refuse(graph, value, spec.axes.index(bound.axis), text, wrong)
                guards += 1
                text = f"{bound.message}: {value.name}"  # node names must differ
    mask = next((value for value, spec in places.pairs if spec.role == "mask" and TOTAL in spec.axes), None)
    if mask is not None:
        _refuse(graph, mask, 1, CACHE_FULL if places.has(CAPACITY) else MASK_MISFIT, places.misfit)
        guards += 1
    for value, spec in places.pairs:
        if spec.role == "positions" and spec.size is not None and value.uses():
            _refuse_positions(graph, value, spec.size, target)
            guards += 1
    return guards


class _Places:
    """Reads sizes off the inputs. ``pairs``: the inputs of ``graph`` and their specifications."""

    def __init__(self, graph: ir.Graph, pairs: Sequence[tuple[ir.Value, InputSpec]]) -> None:
        self.graph, self.pairs = graph, pairs

    def has(self, axis: str) -> bool:
        return any(axis in spec.axes for _, spec in self.pairs)

    def size(self, g: Builder, axis: str, among: ir.Value | None = None) -> ir.Value:
        """The length of an axis, [1], read from an input that has it (``among``: from this one)."""
        value, spec = next((v, s) for v, s in self.pairs if axis in s.axes and among in (None, v))
        return g.size(value, spec.axes.index(axis))

    def total(self, g: Builder) -> ir.Value | None:
        """Past and new tokens, [1]; None where there is no cache."""
        if self.has(CAPACITY):
            return self.size(g, TOTAL)
        return g.Add(self.size(g, SEQUENCE), self.size(g, PAST)) if self.has(PAST) else None

    def misfit(self, g: Builder) -> ir.Value:
        """Whether the mask is not over past and new tokens, or is over more than a cache of fixed size has room for."""
        length = self.size(g, TOTAL)
        if not self.has(CAPACITY) and not self.has(PAST) and any(spec.role == "state" for _, spec in self.pairs):
            return g.Less(length, self.size(g, SEQUENCE))  # the past of states has no axis
        if not self.has(CAPACITY):
            differs = g.Not(g.Equal(length, self.total(g) or self.size(g, SEQUENCE)))
            mask = next(value for value, spec in self.pairs if TOTAL in spec.axes)
            # left out, it is one element
            return differs if mask.const_value is None else g.And(differs, g.Greater(length, [1]))
        return g.Or(g.Greater(length, self.size(g, CAPACITY)), g.Less(length, self.size(g, SEQUENCE)))


def _refuse(graph: ir.Graph, value: ir.Value, position: int, text: str, wrong: Callable[[Builder], ir.Value]) -> None:
    """Let every use of ``value`` fail, at a node named ``text``, where ``wrong`` (bool [1]) is true."""
    users = list(value.uses())
    g = Builder.at_start(graph, name=f"{value.name}_guard_{len(users)}_{text.replace(' ', '_')}")
    shape, over = g.Shape(value), g.Cast(wrong(g), to=ir.DataType.INT64)
    rank = len(value.shape or ())
    # ``over`` at the guarded axis, 0 at the others
    zeros = [[0] * count for count in (position, rank - position - 1)]
    bump = g.shape(*(piece for piece in (zeros[0], over, zeros[1]) if piece)) if rank > 1 else over
    guarded = g.op("Reshape", value, g.Add(shape, bump), allowzero=1, name="passed", shape=value.shape)
    node = guarded.producer()
    assert node is not None
    node.name = text
    for user, place in users:
        user.replace_input_with(place, guarded)


def _refuse_positions(graph: ir.Graph, value: ir.Value, size: int, target: Target | None) -> None:
    text = f"{POSITION_BEYOND} {size - 1}"
    if target is not None and target.waits_to_branch and table_guard.insert(graph, value, size, text):
        return

    def beyond(g: Builder) -> ir.Value:
        return g.GreaterOrEqual(g.ReduceMax(g.Reshape(value, [-1]), keepdims=1), [size])

    _refuse(graph, value, 1, text, beyond)

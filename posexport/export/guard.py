"""The guards: inputs of sizes that the model does not take make the graph fail, on every provider, saying why.

ONNX has no assertion. ``Reshape(input, [b, l + (l > limit)])`` stands for one: within the limit it changes nothing,
beyond it the number of elements cannot match, and the runtime names the failing node, whose name is the message. Shapes
are computed on the host, so it fails on CUDA as on the CPU. Every consumer of the input, ``Shape`` included, reads the
guarded value: a guard off the main path would be pruned, or overtaken by the error (or the silence) of the table's own
Gather.
"""

from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_ir.tape

from posexport.bounds import CACHE_FULL, MASK_MISFIT, POSITION_BEYOND, Bound
from posexport.export import table_guard
from posexport.graph.edits import integers
from posexport.spec import CAPACITY, PAST, SEQUENCE, TOTAL, InputSpec
from posexport.targets.target import Target


def insert(model: ir.Model, inputs: Sequence[InputSpec], bounds: Sequence[Bound], target: Target | None = None) -> None:
    """Guard every input that has a bound's axis, a decoder's mask, and positions that are given.

    To be called last, after all that could move or drop nodes. Past tokens, where there is a cache, count with those of
    ``sequence_length``. For a ``target`` on a device, what position tables hold is guarded, not the positions
    (`posexport.export.table_guard`).
    """
    graph = model.graph
    places = _Places(graph, list(zip(graph.inputs, inputs, strict=True)))
    for bound in bounds:
        text = bound.message
        for value, spec in places.given:
            # an input that may be left out is one element then
            if bound.axis in spec.axes and value.uses() and not (bound.least and spec.default is not None):

                def wrong(tape: "ir.tape.Tape", bound: Bound = bound, own: ir.Value = value) -> ir.Value:
                    if bound.step:
                        rest = tape.op("Mod", [places.size(tape, bound.axis, own), integers(graph, [bound.number])])
                        return tape.op("Greater", [rest, integers(graph, [0])])
                    length = places.total(tape) if bound.axis == SEQUENCE and not bound.least else None
                    length = length or places.size(tape, bound.axis, own)
                    return tape.op("Less" if bound.least else "Greater", [length, integers(graph, [bound.number])])

                _refuse(graph, value, spec.axes.index(bound.axis), text, wrong)
                text = f"{bound.message}: {value.name}"  # node names must differ
    mask = next((value for value, spec in places.given if spec.role == "mask" and TOTAL in spec.axes), None)
    if mask is not None:
        _refuse(graph, mask, 1, CACHE_FULL if places.has(CAPACITY) else MASK_MISFIT, places.misfit)
    for value, spec in places.given:
        if spec.role == "positions" and spec.size is not None and value.uses():
            _refuse_positions(graph, value, spec.size, target)


class _Places:
    """Where sizes can be read. ``given``: the inputs of ``graph`` and what is known of them."""

    def __init__(self, graph: ir.Graph, given: Sequence[tuple[ir.Value, InputSpec]]) -> None:
        self.graph, self.given = graph, given

    def has(self, axis: str) -> bool:
        return any(axis in spec.axes for _, spec in self.given)

    def size(self, tape: "ir.tape.Tape", axis: str, among: ir.Value | None = None) -> ir.Value:
        """The length of an axis, [1], read from an input that has it (``among``: from this one)."""
        value, spec = next((v, s) for v, s in self.given if axis in s.axes and among in (None, v))
        place = spec.axes.index(axis)
        return tape.op("Shape", [value], {"start": place, "end": place + 1})

    def total(self, tape: "ir.tape.Tape") -> ir.Value | None:
        """Past and new tokens, [1]; None where there is no cache."""
        if self.has(CAPACITY):
            return self.size(tape, TOTAL)
        if not self.has(PAST):
            return None
        return tape.op("Add", [self.size(tape, SEQUENCE), self.size(tape, PAST)])

    def misfit(self, tape: "ir.tape.Tape") -> ir.Value:
        """Whether the mask is not over past and new tokens, or is over more than a cache of fixed size has room for."""
        length = self.size(tape, TOTAL)
        if not self.has(CAPACITY):
            total = self.total(tape) or self.size(tape, SEQUENCE)
            differs = tape.op("Not", [tape.op("Equal", [length, total])])
            mask = next(value for value, spec in self.given if TOTAL in spec.axes)
            if mask.const_value is None:
                return differs
            # left out, it is one element
            return tape.op("And", [differs, tape.op("Greater", [length, integers(self.graph, [1])])])
        over = tape.op("Greater", [length, self.size(tape, CAPACITY)])
        return tape.op("Or", [over, tape.op("Less", [length, self.size(tape, SEQUENCE)])])


def _refuse(
    graph: ir.Graph, value: ir.Value, position: int, text: str, wrong: Callable[["ir.tape.Tape"], ir.Value]
) -> None:
    """Let every use of ``value`` fail, at a node named ``text``, where ``wrong`` (bool [1]) is true."""
    users = list(value.uses())
    tape = ir.tape.Tape()
    shape = tape.op("Shape", [value])
    over = tape.op("Cast", [wrong(tape)], {"to": ir.DataType.INT64})
    rank = len(value.shape or ())
    bump = over
    if rank > 1:
        # `over` at the guarded axis, 0 at the others
        zeros = [integers(graph, [0] * n) if n else None for n in (position, rank - position - 1)]
        bump = tape.op("Concat", [part for part in (zeros[0], over, zeros[1]) if part is not None], {"axis": 0})
    target = tape.op("Add", [shape, bump])
    base = f"{value.name}_guard_{len(users)}_{text.replace(' ', '_')}"
    guarded = tape.op(
        "Reshape",
        [value, target],
        {"allowzero": 1},
        name=text,
        output=ir.Value(name=f"{base}_passed", shape=value.shape, type=value.type),
    )
    for index, node in enumerate(tape.nodes):
        if node.name != text:
            node.name = f"{base}_{index}"
        for output in node.outputs:
            output.name = output.name or f"{base}_value_{index}"
    for user, place in users:
        user.replace_input_with(place, guarded)
    graph.insert_before(graph[0], tape.nodes)


def _refuse_positions(graph: ir.Graph, value: ir.Value, size: int, target: Target | None) -> None:
    """Refuse positions that are not below ``size``."""
    text = f"{POSITION_BEYOND} {size - 1}"
    if target is not None and target.waits_to_branch and table_guard.insert(graph, value, size, text):
        return

    def beyond(tape: "ir.tape.Tape") -> ir.Value:
        flat = tape.op("Reshape", [value, integers(graph, [-1])])
        most = tape.op("ReduceMax", [flat], {"keepdims": 1})
        return tape.op("GreaterOrEqual", [most, integers(graph, [size])])

    _refuse(graph, value, 1, text, beyond)

"""The length guard: an input longer than a table (or too short) makes the graph fail, on every provider, saying so.

ONNX has no assertion. ``Reshape(input, [b, l + (l > limit)])`` stands for one: within the limit it changes nothing,
beyond it the number of elements cannot match, and the runtime names the failing node, whose name is the message. Shapes
are computed on the host, so it fails on CUDA as on the CPU. Every consumer of the input, ``Shape`` included, reads the
guarded value: a guard off the main path would be pruned, or overtaken by the error (or the silence) of the table's own
Gather.
"""

from collections.abc import Sequence

import onnx_ir as ir
import onnx_ir.tape

from posexport.bounds import Bound
from posexport.spec import PAST, SEQUENCE, InputSpec


def insert(model: ir.Model, inputs: Sequence[InputSpec], bounds: Sequence[Bound]) -> None:
    """Guard every input that has a bound's axis. To be called last, after all that could move or drop nodes.

    Past tokens, where there is a cache, count with those of ``sequence_length``.
    """
    graph = model.graph
    caches = [(value, spec) for value, spec in zip(graph.inputs, inputs, strict=True) if spec.role == "cache"]
    past = next(((value, spec.axes.index(PAST)) for value, spec in caches), None)
    for bound in bounds:
        text = bound.message
        for value, spec in zip(graph.inputs, inputs, strict=True):
            if bound.axis in spec.axes and value.uses():
                counted = past if bound.axis == SEQUENCE and not bound.least else None
                _guard(graph, value, spec.axes.index(bound.axis), bound, text, counted)
                text = f"{bound.message}: {value.name}"  # node names must differ


def _guard(
    graph: ir.Graph, value: ir.Value, position: int, bound: Bound, text: str, past: tuple[ir.Value, int] | None
) -> None:
    users = list(value.uses())
    tape = ir.tape.Tape()
    base = f"{value.name}_guard_{bound.axis}_{'least' if bound.least else 'most'}"
    number = _constant(tape, f"{base}_limit", [bound.number])
    shape = tape.op("Shape", [value], output=ir.Value(name=f"{base}_shape"))
    length = tape.op("Shape", [value], {"start": position, "end": position + 1})
    if past is not None:
        held = tape.op("Shape", [past[0]], {"start": past[1], "end": past[1] + 1})
        length = tape.op("Add", [length, held])
    over = tape.op("Cast", [tape.op("Less" if bound.least else "Greater", [length, number])], {"to": ir.DataType.INT64})
    rank = len(value.shape or ())
    bump = over
    before, after = position, rank - position - 1
    if rank > 1:
        # `over` at the guarded axis, 0 at the others
        zeros = [
            _constant(tape, f"{base}_zeros_{side}", [0] * n) if n else None for side, n in (("l", before), ("r", after))
        ]
        bump = tape.op("Concat", [part for part in (zeros[0], over, zeros[1]) if part is not None], {"axis": 0})
    target = tape.op("Add", [shape, bump])
    guarded = tape.op(
        "Reshape",
        [value, target],
        {"allowzero": 1},
        name=text,
        output=ir.Value(name=f"{base}ed", shape=value.shape, type=value.type),
    )
    for index, node in enumerate(tape.nodes):
        if node.name != text:
            node.name = f"{base}_{index}"
        for output in node.outputs:
            output.name = output.name or f"{base}_value_{index}"
    for user, place in users:
        user.replace_input_with(place, guarded)
    graph.insert_before(graph[0], tape.nodes)


def _constant(tape: "ir.tape.Tape", name: str, values: list[int]) -> ir.Value:
    return tape.op("Constant", [], {"value_ints": values}, output=ir.Value(name=name))

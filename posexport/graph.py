"""Small questions to a graph of onnx_ir, and small changes of it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: how far a constant may be from the number that a formula has; the exporter writes them in float32
_NEAR = 1e-6


def number(value: ir.Value | None) -> float | None:
    """The one number of a constant; None for anything else."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def is_near(value: ir.Value | None, wanted: float) -> bool:
    """Whether ``value`` is the constant ``wanted``, as near as float32 has it."""
    found = number(value)
    return found is not None and abs(found - wanted) <= _NEAR * abs(wanted)


def constant(value: ir.Value | None, most: int = 16) -> NDArray[Any] | None:
    """The numbers of a constant of at most ``most``; None for anything else, an input with a default included."""
    if value is None or value.const_value is None or value.is_graph_input() or value.const_value.size > most:
        return None
    return np.asarray(value.const_value.numpy())


def is_weight(value: ir.Value | None, rank: int) -> bool:
    """Whether ``value`` is an initialiser of so many axes, whose sizes are known."""
    return (
        value is not None
        and value.const_value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and len(value.const_value.shape) == rank
    )


def width(value: ir.Value | None) -> int | None:
    """Of the last axis, where it is known."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    last = value.shape[-1]
    return last if isinstance(last, int) else None


def sizes(value: ir.Value | None) -> tuple[int | str, ...] | None:
    """All sizes, numbers or names, where they are known."""
    if value is None or value.shape is None:
        return None
    found = [size if isinstance(size, int) else size.value for size in value.shape]
    return None if None in found else tuple(size for size in found if size is not None)


def axis(node: ir.Node, default: int) -> int:
    """The attribute ``axis``, counted from the end where the input's rank is known."""
    given = node.attributes.get_int("axis", default)
    first = node.inputs[0]
    rank = len(first.shape) if first is not None and first.shape is not None else None
    return given if given is None or given < 0 or rank is None else given - rank


def only(value: ir.Value) -> ir.Node | None:
    """The node that reads ``value``, where it is the only reader and the graph does not give the value."""
    users = [user for user, _ in value.uses()]
    return users[0] if len(users) == 1 and not value.is_graph_output() else None


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node of that standard operator that gives ``value``."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and not node.domain else None


def initializer(graph: ir.Graph, name: str, tensor: "ir.TensorProtocol") -> ir.Value:
    """A new initialiser; a number is put behind ``name`` where that is taken."""
    free, count = name, 0
    while free in graph.initializers:
        count += 1
        free = f"{name}_{count}"
    tensor.name = free
    value = ir.Value(name=free, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)  # type: ignore[arg-type]
    graph.register_initializer(value)
    return value


def integers(graph: ir.Graph, values: Sequence[int]) -> ir.Value:
    """An initialiser of int64 numbers, one and the same for the same numbers."""
    name = "ints_" + "_".join(str(value).replace("-", "minus") for value in values)
    found = graph.initializers.get(name)
    return found or initializer(graph, name, ir.tensor(np.asarray(values, np.int64)))


def put(node: ir.Node, before: ir.Node, like: Iterable[ir.Node]) -> None:
    """Insert ``node``; the modules that it was traced in are those of the first of ``like`` that says so."""
    assert before.graph is not None
    for other in like:
        for key, value in other.metadata_props.items():
            node.metadata_props.setdefault(key, value)
    before.graph.insert_before(before, node)


def put_after(graph: ir.Graph, before: ir.Node | None, node: ir.Node) -> None:
    """Insert ``node`` after ``before``; at the graph's start where that is None, for what an input or weight gives."""
    if before is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(before, node)


def replace(old: ir.Value, new: ir.Value) -> None:
    """Let all readers of ``old`` read ``new``, which takes its name, shape and type; an output of the graph too."""
    name = old.name
    new.shape, new.type = old.shape, old.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}_before"
    new.name = name


def take_place(node: ir.Node, of: ir.Node) -> None:
    """Put a node where another stands, whose outputs its first outputs become."""
    assert of.graph is not None
    of.graph.insert_before(of, node)
    for old, new in zip(of.outputs, node.outputs, strict=False):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    of.graph.remove(of, safe=True)

"""Small changes of a graph of onnx_ir."""

import itertools
from collections.abc import Collection, Container, Sequence

import numpy as np
import onnx_ir as ir


def unused(name: str, taken: Container[str], *, between: str = "_", first: int = 2) -> str:
    """``name``, with the first number appended that makes it unique if it is in ``taken``."""
    numbered = (f"{name}{between}{number}" for number in itertools.count(first))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def claim(name: str, taken: set[str], *, between: str = "_") -> str:
    """A unique name (`unused`), which is added to ``taken``."""
    free = unused(name, taken, between=between)
    taken.add(free)
    return free


def free_names(graph: ir.Graph, names: Collection[str]) -> None:
    """Rename inner values and weights that have one of ``names``, which inputs and outputs are about to get."""
    ends = {*graph.inputs, *graph.outputs}
    values = [value for node in ir.traversal.RecursiveGraphIterator(graph) for value in node.outputs]
    inner = [value for value in (*values, *graph.initializers.values()) if value not in ends]
    taken = {*names, *(value.name or "" for value in inner)}
    for value in inner:
        if value.name in names:
            value.name = claim(f"{value.name}_inner", taken)


def initializer(graph: ir.Graph, name: str, tensor: "ir.TensorProtocol") -> ir.Value:
    """A new initialiser, called ``name``, with a number if another one or the output of a node is."""
    # part 2 of a weight cat, and the output cat_2 of PyTorch's third concatenation
    outputs = {value.name or "" for node in graph for value in node.outputs}
    free = unused(name, {*outputs, *graph.initializers}, first=1)
    tensor.name = free
    value = ir.Value(name=free, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)  # type: ignore[arg-type]
    graph.register_initializer(value)
    return value


def integers(graph: ir.Graph, values: Sequence[int]) -> ir.Value:
    """An int64 initialiser, shared by all calls with the same ``values``."""
    name = "ints_" + "_".join(str(value).replace("-", "minus") for value in values)
    stored = graph.initializers.get(name)
    return stored or initializer(graph, name, ir.tensor(np.asarray(values, np.int64)))


def put_after(graph: ir.Graph, before: ir.Node | None, node: ir.Node) -> None:
    """Insert ``node`` after ``before``, or at the start of the graph if that is None, as for inputs and weights."""
    if before is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(before, node)


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of ``old`` by ``new``, which gets its name, shape and type; an output of the graph too."""
    name = old.name
    new.shape, new.type = old.shape, old.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}_before"
    new.name = name


def take_place(node: ir.Node, of: ir.Node) -> None:
    """Replace the node ``of`` by ``node``, output by output; ``node`` may have more outputs."""
    assert of.graph is not None
    of.graph.insert_before(of, node)
    for old, new in zip(of.outputs, node.outputs, strict=False):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    of.graph.remove(of, safe=True)

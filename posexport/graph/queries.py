"""Small questions to a graph of onnx_ir."""

import ast
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: what the exporter's optimiser folded a weight from, and what a pass packed it from: lists of parameters' names
FOLDED_FROM, PACKED_FROM = "pkg.onnxscript.optimizer.folded_from", "posexport.packed_from"
#: names and classes of the modules that a node was traced in: ``encoder.layer.0``, ``torch.nn.modules.linear.Linear``;
#: of what the tracer notes at a node, this stays in files
NOTES = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
#: how far a constant may be from the number that a formula has; the exporter writes them in float32
_NEAR = 1e-6


def number(value: ir.Value | None) -> float | None:
    """The one number of a constant; None for anything else."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def is_near(value: ir.Value | None, wanted: float) -> bool:
    """Whether ``value`` is the constant ``wanted``, as near as float32 has it."""
    actual = number(value)
    return actual is not None and abs(actual - wanted) <= _NEAR * abs(wanted)


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
    known_sizes = [size if isinstance(size, int) else size.value for size in value.shape]
    return None if None in known_sizes else tuple(size for size in known_sizes if size is not None)


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


def names_of(weight: ir.Value) -> tuple[str, ...]:
    """The parameters that a weight was made from, else its own name; for users, who know those."""
    for key in (PACKED_FROM, FOLDED_FROM):
        if key in weight.metadata_props:
            return tuple(ast.literal_eval(weight.metadata_props[key]))
    return (weight.name or "weight",)


def matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a glob pattern matches a name."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

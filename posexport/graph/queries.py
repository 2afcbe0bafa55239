"""Small queries of values and nodes of onnx_ir."""

import ast
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

#: with bodies
CONTROL_FLOW = ("If", "Loop", "Scan")
#: return sizes of their input
SIZES = frozenset(["Shape", "Size"])
#: the output has none of the input's elements
SHAPES = SIZES | {"ConstantOfShape"}
COMPARISONS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
#: the output is bool
TRUTHS = COMPARISONS | {"Not", "And", "Or", "IsNaN"}


#: metadata of a weight: names of the parameters that the optimiser folded, or a pass packed, into it
FOLDED_FROM, PACKED_FROM = "pkg.onnxscript.optimizer.folded_from", "posexport.packed_from"
#: the end of the name of a weight that a module computes from its parameters in each call
COMPUTED = "_computed"
#: metadata of a node that stays in files: names and classes of the modules that it was traced in,
#: ``encoder.layer.0``, ``torch.nn.modules.linear.Linear``
NOTES = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
#: relative tolerance for constants of formulas, which the exporter writes in float32
_NEAR = 1e-6


def number(value: ir.Value | None) -> float | None:
    """The element of a constant of one; None for anything else."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def is_near(value: ir.Value | None, expected: float) -> bool:
    """Whether ``value`` is the constant ``expected``, to float32 precision."""
    actual = number(value)
    return actual is not None and abs(actual - expected) <= _NEAR * abs(expected)


def constant(value: ir.Value | None, most: int = 16) -> NDArray[Any] | None:
    """The elements of a constant of at most ``most``; None for anything else, also for the default of an input."""
    if value is None or value.const_value is None or value.is_graph_input() or value.const_value.size > most:
        return None
    return np.asarray(value.const_value.numpy())


def is_weight(value: ir.Value | None, rank: int) -> bool:
    """Whether ``value`` is an initialiser with ``rank`` axes."""
    return (
        value is not None
        and value.const_value is not None
        and value.is_initializer()
        and not value.is_graph_input()
        and len(value.const_value.shape) == rank
    )


def width(value: ir.Value | None) -> int | None:
    """The size of the last axis, if it is a known number."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    last = value.shape[-1]
    return last if isinstance(last, int) else None


def sizes(value: ir.Value | None) -> tuple[int | str, ...] | None:
    """All sizes, numbers or names; None if one is unknown."""
    if value is None or value.shape is None:
        return None
    known_sizes = [size if isinstance(size, int) else size.value for size in value.shape]
    return None if None in known_sizes else tuple(size for size in known_sizes if size is not None)


def axis(node: ir.Node, default: int) -> int:
    """The attribute ``axis``, counted from the end where the input's rank is known."""
    number = node.attributes.get_int("axis", default)
    first = node.inputs[0]
    rank = len(first.shape) if first is not None and first.shape is not None else None
    return number if number is None or number < 0 or rank is None else number - rank


def only(value: ir.Value) -> ir.Node | None:
    """The only reader of ``value``; None if there are several, or if the graph returns it."""
    users = [user for user, _ in value.uses()]
    return users[0] if len(users) == 1 and not value.is_graph_output() else None


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that computes ``value``, if it is of this standard operator."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and not node.domain else None


def names_of(weight: ir.Value) -> tuple[str, ...]:
    """The parameters that a weight was made from, else its name; users know the parameters' names."""
    for key in (PACKED_FROM, FOLDED_FROM):
        if key in weight.metadata_props:
            return tuple(ast.literal_eval(weight.metadata_props[key]))
    return (weight.name or "weight",)


def stays_float(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a weight of these names is not quantized: a pattern of ``--keep-float`` matches, or it is no parameter.

    The definition has no place for integers in place of a weight that it computes.
    """
    return any(fnmatchcase(name, pattern) for name in names for pattern in (f"*{COMPUTED}", *patterns))


def bodies(node: ir.Node) -> dict[str, ir.Graph]:
    """The graphs in a node's attributes, by the attribute: branches of If, the body of Loop and Scan."""
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }


def with_bodies(top: ir.Graph) -> list[ir.Graph]:
    """A graph, and the bodies of its nodes, an outer one before those in it."""
    return [top, *top.subgraphs()]


def loop_inputs(node: ir.Node, body: ir.Graph) -> tuple[Sequence[ir.Value], Sequence[ir.Value | None]]:
    """The inputs of the body of a Scan or Loop, and the values passed to them; the branches of an If have none."""
    if node.op_type == "Loop":
        return body.inputs[1:], node.inputs[1:]
    return body.inputs, node.inputs


def loop_carried(node: ir.Node, body: ir.Graph) -> list[tuple[ir.Value, ir.Value]]:
    """Every loop-carried state, before and after the body; an If has none."""
    if node.op_type == "Loop":
        return list(zip(body.inputs[2:], body.outputs[1:], strict=False))
    states = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    return list(zip(body.inputs[:states], body.outputs[:states], strict=True))


def loop_results(node: ir.Node, body: ir.Graph) -> Sequence[ir.Value]:
    """The values of a body that become the outputs of its Scan, Loop or If."""
    return body.outputs[1:] if node.op_type == "Loop" else body.outputs


def weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)

"""PX103 and PX101: a constant of the example's length (a causal mask, positions) is computed for the call's length."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.builder import Builder
from posexport.graph.dataflow import reachable, sources
from posexport.inspect.audit.analyses.conflicts import BROADCASTING, Conflict
from posexport.inspect.audit.analyses.sizes import Size
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject

#: elements of a constant that is looked at
_MOST = 1 << 22
#: two elements are a range by chance
_LEAST = 3
#: operators with the same axes in the output as in the inputs
_SAME_AXES = (BROADCASTING - {"Expand"}) | {"Cast", "Not", "Identity", "Dropout", "LayerNormalization"}
#: operators that exporters leave in front of a constant where they do not fold them
_FOLDED = frozenset(
    [
        *("Cast", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Range", "ConstantOfShape", "Trilu", "Concat"),
        *("Add", "Sub", "Mul", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Transpose"),
    ]
)


def computed(subject: Subject, conflict: Conflict) -> list[ir.Value] | None:
    """Replaces the constant that ``conflict.fixed`` has its size from; None if there is none, or no rule in it.

    Before: ``Add(scores [B, H, T, T], mask [1, 1, 17, 17])``
    After:  ``Add(scores, Where(Range(T) <= Unsqueeze(Range(T), -1), visible, masked))``; of booleans without the Where

    Before: ``Add(words [B, T, D], Gather(table, [[2, 3, .., 18]]))``
    After:  ``Add(words, Gather(table, Unsqueeze(Range(T), 0) + 2))``
    """
    node = conflict.node
    # products align other axes, and a shape is no constant of that size
    if "MatMul" in node.op_type or (node.op_type == "Expand" and conflict.fixed is node.inputs[1]):
        return None
    reader, value, axis = _origin(subject, conflict)
    array = _array(subject, value)
    if array is None or array.ndim < -axis or array.shape[axis] != conflict.number:
        return None
    if (levels := _levels(array)) is not None:
        return _mask(subject, value, array.ndim, *levels)
    step = _step(array, axis)
    if step is None or (step and subject.sizes.is_batch(conflict.free)):
        return None
    if step and subject.roles.is_decoder:
        raise NotRepairedError("its positions would have to count the tokens in the cache; export it again")
    return _positions(subject, conflict, reader, value, array.take([0], axis), step, axis)


def _origin(subject: Subject, conflict: Conflict) -> tuple[ir.Node, ir.Value, int]:
    """The value from which ``conflict.fixed`` has the size: the node that reads it, the value, and its axis."""
    reader, value, axis = conflict.node, conflict.fixed, conflict.axis
    while (node := value.producer()) is not None and not node.domain:
        before, moved = None, axis
        if node.op_type in _SAME_AXES:
            fitting = (x for x in node.inputs if x is not None and _size(subject, x, axis) == conflict.number)
            before = next(fitting, None)
        elif node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0:
            table = subject.sizes.of(node.inputs[0])
            before, moved = (None if table is None else node.inputs[1]), axis + len(table or ()) - 1
        if before is None or moved >= 0:
            break
        reader, value, axis = node, before, moved
    return reader, value, axis


def _size(subject: Subject, value: ir.Value, axis: int) -> Size | None:
    sizes = subject.sizes.of(value) or ()
    return sizes[axis] if len(sizes) >= -axis else None


def _array(subject: Subject, value: ir.Value) -> NDArray[Any] | None:
    """The elements of a constant, or of a value that a few operators compute from constants; None for other values."""
    from onnx.reference import ReferenceEvaluator

    sizes = subject.sizes.of(value) or ()
    if prod(size if isinstance(size, int) else _MOST + 1 for size in sizes) > _MOST:
        return None
    if (tensor := ir.convenience.get_const_tensor(value)) is not None:
        return tensor.numpy()
    node = value.producer()
    if node is None or node.domain or node.op_type not in _FOLDED:
        return None
    arrays = {x.name or "": _array(subject, x) for x in node.inputs if x is not None}
    if any(array is None for array in arrays.values()):
        return None
    try:
        (result,) = ReferenceEvaluator(ir.serde.serialize_node(node)).run(None, arrays)
    except Exception:  # noqa: BLE001 (onnx's exceptions for damaged nodes share no base class)
        return None
    return np.asarray(result)


def _levels(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """The values of a causal mask for visible and masked keys; None for another array."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return None
    square = array.reshape(-1, *array.shape[-2:])[0]
    visible, masked = square[0, 0], square[0, -1]
    causal = np.where(np.tril(np.ones(square.shape, bool)), visible, masked)
    is_causal = visible != masked and np.array_equal(array, np.broadcast_to(causal, array.shape))
    return (np.asarray(visible), np.asarray(masked)) if is_causal else None


def _step(array: NDArray[Any], axis: int) -> int | None:
    """By how much integers grow along an axis, 0 if they are all the same; None if not by the same everywhere."""
    if array.dtype.kind not in "iu" or array.shape[axis] < 2:
        return None
    steps = np.diff(array.astype(np.int64), axis=axis)
    step = int(steps.flat[0])
    return step if (steps == step).all() and (step == 0 or array.shape[axis] >= _LEAST) else None


def _mask(subject: Subject, mask: ir.Value, rank: int, visible: NDArray[Any], masked: NDArray[Any]) -> list[ir.Value]:
    """Writes the mask for all layers: they share the constant, and the first layer's scores have the same sizes."""
    scores = _scores(subject, mask)
    if scores is None:
        raise NotRepairedError(f"{mask.name!r} meets no scores with as many queries as keys; export it again")
    g, length = _length(subject, _size(subject, scores, -1), [scores], f"{mask.name}_causal")
    columns = g.range(g.Constant(value_ints=[0]), length)
    rows = g.Unsqueeze(columns, [-1])
    if visible.dtype == bool:  # the CPU has no Where of booleans
        new = g.LessOrEqual(columns, rows) if visible else g.Greater(columns, rows)
    else:
        new = g.Where(g.LessOrEqual(columns, rows), visible, masked)
    return _replace(subject, list(mask.uses()), g.Unsqueeze(new, [*range(rank - 2)]) if rank > 2 else new)


def _scores(subject: Subject, mask: ir.Value) -> ir.Value | None:
    """The first value with as many queries as keys, both free, that meets the mask, perhaps joined with another."""

    def onward(value: ir.Value) -> Iterator[ir.Value]:
        return (y for user, _ in value.uses() if user.op_type in _SAME_AXES for y in user.outputs)

    masks = set(reachable([mask], onward))
    for node in subject.nodes:
        for value in node.inputs if not masks.isdisjoint(node.inputs) else ():
            sizes = subject.sizes.of(value) or ()
            if value is None or value in masks or len(sizes) < 2:
                continue
            if sizes[-1] == sizes[-2] and subject.sizes.is_free(sizes[-1]):
                return None if mask in set(sources(value, breaks=())) else value
    return None


def _positions(
    subject: Subject, conflict: Conflict, reader: ir.Node, value: ir.Value, first: NDArray[Any], step: int, axis: int
) -> list[ir.Value]:
    """Writes ``first + step * Range(T)`` for one reader."""
    candidates = [x for x in conflict.node.inputs if x is not None and x is not conflict.fixed]
    g, length = _length(subject, conflict.free, candidates, f"{value.name}_range")
    new = g.range(g.Constant(value_ints=[0]), length)
    if first.ndim > 1:
        new = g.Unsqueeze(new, [place for place in range(first.ndim) if place != first.ndim + axis])
    if step != 1:
        new = g.Mul(new, step)
    if first.any():
        new = g.Add(new, first.astype(np.int64))
    if value.dtype not in (None, ir.DataType.INT64):
        new = g.Cast(new, to=value.dtype)
    return _replace(subject, [use for use in value.uses() if use.node is reader], new)


def _length(subject: Subject, free: Size | None, candidates: Iterable[ir.Value], name: str) -> tuple[Builder, ir.Value]:
    """A place where a size is known, and the size, int64 [1]: of an input, else of one of ``candidates``."""
    for value in (*subject.graph.inputs, *candidates):
        for axis, size in enumerate(subject.sizes.of(value) or ()):
            if size == free:
                g = Builder.behind(subject.graph, value, name=name)
                return g, g.size(value, axis)
    raise NotRepairedError("nothing has the size that it needs; export it again")


def _replace(subject: Subject, uses: Sequence[tuple[ir.Node, int]], new: ir.Value) -> list[ir.Value]:
    for user, index in uses:
        user.replace_input_with(index, new)
    subject.graph.sort()
    return [value for user, _ in uses for value in user.outputs]


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    conflict = next((known for known in subject.conflicts if known.node is place.nodes[0]), None)
    if conflict is not None and conflict.fixed not in conflict.node.inputs:
        return []  # shared with a layer before
    changed = None if conflict is None else computed(subject, conflict)
    if changed is None:
        name = "it" if conflict is None else repr(conflict.fixed.name)
        raise NotRepairedError(
            f"{name} is no causal mask and no range: what it was computed from is not in the file; export it again"
        )
    return changed


REPAIR = Repair(does="causal masks and positions are computed for the length of the call", apply=_apply)

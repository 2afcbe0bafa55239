"""Queries without keys: their probabilities are NaN, which modules replace by zeros before the product with values.

In the graph of a module that does so, attention is recognised as if it did not; the context of these queries is set to
zeros. For a Softmax that is left as it is, NaN are replaced again.
"""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.queries import number, only, producer, sizes

#: in the metadata of a Softmax: NaN of its probabilities are replaced by zeros
_REPLACED = "posexport.nan_is_zero"


def without_guards(softmax: ir.Node) -> None:
    """Remove what sets rows of probabilities to zeros before the product with values.

    Before: ``Softmax -> Where(IsNaN(..), 0, ..) -> MatMul``
    After:  ``Softmax -> MatMul``, and the Softmax is marked (`replaces_nan`)

    Before: ``Softmax -> Where(condition [.., 1], 0, ..) -> MatMul``
    After:  ``Softmax -> MatMul -> Where(condition, 0, ..)``, which is the same for any condition of whole rows
    """
    probs = softmax.outputs[0]
    if (guarded := _guarded(probs)) is not None:
        ir.convenience.replace_all_uses_with(guarded, probs)
        softmax.meta[_REPLACED] = True
    where = next((user for user in _readers(probs) if user.op_type == "Where" and not user.domain), None)
    if where is None or len([*_readers(probs)]) > 1:
        return
    condition, *branches = where.inputs
    product = only(where.outputs[0])
    is_of_rows = (sizes(condition) or (0,))[-1] == 1 and sizes(where.outputs[0]) == sizes(probs)
    if not is_of_rows or product is None or product.op_type != "MatMul" or product.inputs[0] is not where.outputs[0]:
        return
    at = branches.index(probs)
    if not _is_zero(branches[1 - at]):
        return
    product.replace_input_with(0, probs)
    context = product.outputs[0]
    g = Builder.at(product, after=True)
    operands = (context, 0.0) if at == 0 else (0.0, context)
    _put_behind(context, g.op("Where", condition, *operands, shape=context.shape))


def replaces_nan(softmax: ir.Node) -> bool:
    """Whether the module replaces NaN of these probabilities by zeros."""
    return _REPLACED in softmax.meta


def keep_replacing(probs: ir.Value, softmax: ir.Node) -> None:
    """Mark the Softmax of ``probs``, which takes the place of ``softmax``."""
    new = probs.producer()
    assert new is not None
    new.meta.update(softmax.meta)


def with_guard(softmax: ir.Node) -> None:
    """Replace NaN of probabilities by zeros again, where attention was not recognised."""
    probs = softmax.outputs[0]
    if softmax.meta.pop(_REPLACED, False):
        g = Builder.at(softmax, after=True)
        is_nan = g.op("IsNaN", probs, shape=probs.shape)
        _put_behind(probs, g.op("Where", is_nan, 0.0, probs, shape=probs.shape), is_nan.producer())


def zero_context(context: ir.Value, sees_none: ir.Value) -> None:
    """Set the context [B, H, T, D] of queries that see no key to zeros.

    On packed heads [B, T, H D], if the module packs them next and the condition [B or 1, 1, T or 1, 1] holds for
    all heads: attention can then compute packed heads.
    """
    value, shape = context, sizes(sees_none) or ()
    transpose = only(context)
    packed = None if transpose is None else only(transpose.outputs[0])
    if (
        transpose is not None
        and transpose.op_type == "Transpose"
        and list(transpose.attributes.get_ints("perm") or ()) == [0, 2, 1, 3]
        and packed is not None
        and packed.op_type == "Reshape"
        and len(sizes(packed.outputs[0]) or ()) == 3
        and (sizes(packed.outputs[0]) or ())[1] == (sizes(context) or ())[2]
        and shape[1] == 1
    ):
        value = packed.outputs[0]
    node = value.producer()
    assert node is not None
    g = Builder.at(node, after=True)
    condition = sees_none if value is context else g.op("Squeeze", sees_none, [1], shape=[shape[0], *shape[2:]])
    _put_behind(value, g.op("Where", condition, 0.0, value, shape=value.shape))


def _put_behind(value: ir.Value, changed: ir.Value, *readers: ir.Node | None) -> None:
    """Let ``changed`` be read in place of ``value``, except in its node and by ``readers``."""
    changed.type = value.type
    unchanged = (changed.producer(), *readers)
    for user, index in tuple(value.uses()):
        if user not in unchanged:
            user.replace_input_with(index, changed)
    graph = None if unchanged[0] is None else unchanged[0].graph
    for index, output in enumerate(graph.outputs if graph is not None else ()):
        if output is value and graph is not None:
            graph.outputs[index] = changed
            value.name, changed.name = f"{value.name}_before", value.name


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read elements of ``value``."""
    return (user for user, _ in value.uses() if user.op_type != "Shape")


def _guarded(probs: ir.Value) -> ir.Value | None:
    """``probs`` with zeros in place of NaN, where nothing else reads them."""
    guard = next((node for node in _readers(probs) if _replaces_nan(node, probs)), None)
    if guard is None:
        return None
    # torch.nan_to_num replaces infinities too; a probability is never infinite
    value = guard.outputs[0]
    while (node := only(value)) is not None and node.op_type == "Where" and node.inputs[2] is value:
        if producer(node.inputs[0], "And") is None or not _tests_infinity(node.inputs[0], probs):
            break
        value = node.outputs[0]
    # each reader leads to the guard alone
    is_read = any(not _leads_to(node, {guard, value.producer()}, value) for node in _readers(probs))
    is_returned = value.is_graph_output() or probs.is_graph_output()
    return None if is_read or is_returned or sizes(value) != sizes(probs) else value


def _replaces_nan(node: ir.Node, probs: ir.Value) -> bool:
    """Whether ``node`` is ``Where(IsNaN(probs), 0, probs)``, or ``probs[isnan(probs)] = 0``."""
    if node.op_type == "Where" and node.inputs[2] is probs:
        return _is_nan(node.inputs[0], probs) and _is_zero(node.inputs[1])
    if node.op_type != "ScatterND" or node.inputs[0] is not probs:
        return False
    at = producer(node.inputs[1], "Transpose")
    marked = producer(None if at is None else at.inputs[0], "NonZero")
    return marked is not None and _is_nan(marked.inputs[0], probs) and _is_zero(node.inputs[2])


def _is_nan(condition: ir.Value | None, probs: ir.Value) -> bool:
    """Whether ``condition`` is ``isnan(probs)`` or ``probs != probs``."""
    node = None if condition is None else condition.producer()
    if node is not None and node.op_type == "Not":
        equal = producer(node.inputs[0], "Equal")
        return equal is not None and all(x is probs for x in equal.inputs)
    return node is not None and node.op_type == "IsNaN" and node.inputs[0] is probs


def _is_zero(value: ir.Value | None) -> bool:
    """Whether all elements are the constant 0."""
    while value is not None and (node := value.producer()) is not None and node.op_type in ("Expand", "Reshape"):
        value = node.inputs[0]
    return number(value) == 0


def _tests_infinity(condition: ir.Value | None, probs: ir.Value) -> bool:
    both = producer(condition, "And")
    infinite = next((x for x in (both.inputs if both else ()) if producer(x, "IsInf")), None)
    node = producer(infinite, "IsInf")
    return node is not None and node.inputs[0] is probs


def _leads_to(node: ir.Node, ends: set[ir.Node | None], value: ir.Value) -> bool:
    """Whether all that is computed from ``node`` enters ``value`` through the nodes of a guard."""
    if node in ends or node.outputs[0] is value:
        return True
    users = [user for user, _ in node.outputs[0].uses()]
    return bool(users) and not node.outputs[0].is_graph_output() and all(_leads_to(u, ends, value) for u in users)

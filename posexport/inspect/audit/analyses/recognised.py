"""Attention and position encodings of a graph, which an audit prints even if it has no findings."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from posexport.graph.dataflow import dependents, reachable, sources
from posexport.graph.queries import SHAPES, TRUTHS
from posexport.inspect.audit.analyses.attention import Attention
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.analyses.rotations import rotations
from posexport.inspect.audit.analyses.weights import stored
from posexport.inspect.audit.finding import Recognised
from posexport.inspect.audit.rule import name_of

if TYPE_CHECKING:
    from posexport.inspect.audit.subject import Subject

#: op types that move, scale or add scores -> the number of leading inputs that may be scores
_MOVES = {
    **dict.fromkeys(("Reshape", "Transpose", "Slice", "Gather", "GatherElements", "Pad", "Expand", "Cast"), 1),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Div", "Split"), 1),
    **dict.fromkeys(("Add", "Mul"), 2),
}


def recognised(subject: "Subject", file: str) -> Iterator[Recognised]:
    """Attention and position encodings of a graph, one record for each kind."""
    yield from _attention(subject, file)
    for rotation in rotations(subject.nodes):
        yield Recognised(file=file, kind="positions", what=str(rotation), nodes=(name_of(rotation.node),))
    yield from _tables(subject, file)
    yield from _biases(subject, file)


def _attention(subject: "Subject", file: str) -> Iterator[Recognised]:
    kinds = [attention.node.op_type if attention.fused else "" for attention in subject.attentions]
    for op_type, number in Counter(kinds).items():
        nodes = [attention.node for attention, kind in zip(subject.attentions, kinds, strict=True) if kind == op_type]
        what = f"{number} fused ({op_type})" if op_type else f"{number} of several nodes (MatMul, Softmax, MatMul)"
        yield Recognised(file=file, kind="attention", what=what, nodes=tuple(map(name_of, nodes)))


def _tables(subject: "Subject", file: str) -> Iterator[Recognised]:
    """Tables that are looked up by position and added to the embeddings."""
    biases = {value for attention in subject.attentions for value in attention.added}
    by_table: dict[str, list[ir.Node]] = {}
    texts: dict[str, str] = {}
    for lookup in lookups(subject.nodes, subject.roles, subject.sizes):
        if not biases.isdisjoint(dependents(subject.graph, lookup.node.outputs)) and lookup.bounded:
            continue  # a table of distances
        if _is_rotary(lookup.table):
            continue
        name = lookup.table.name or "?"
        by_table.setdefault(name, []).append(lookup.node)
        shape = " x ".join(map(str, subject.sizes.of(lookup.table) or ()))
        texts[name] = f"{_kind(lookup.table)}, table {name!r} [{shape}]"
    for name, nodes in by_table.items():
        yield Recognised(file=file, kind="positions", what=texts[name], nodes=tuple(map(name_of, nodes)))


def _is_rotary(table: ir.Value) -> bool:
    """Whether a table contains cosines or sines of RoPE, which `rotations` reports."""
    tensor = ir.convenience.get_const_tensor(table)
    if tensor is None or len(tensor.shape) != 2 or tensor.size < 2 * 2 or not tensor.dtype.is_floating_point():
        return False
    first, second = np.asarray(tensor.numpy()[:2], np.float64)
    return bool(
        ((first == 1).all() and np.isclose(second, np.cos(1.0), atol=1e-3).any())
        or ((first == 0).all() and np.isclose(second, np.sin(1.0), atol=1e-3).any())
    )


def _kind(table: ir.Value) -> str:
    """``sinusoidal`` or ``learned``, judged by the first rows of a position table."""
    tensor = ir.convenience.get_const_tensor(table)
    if tensor is None or len(tensor.shape) != 2 or tensor.size < 3 * 4 or not tensor.dtype.is_floating_point():
        return "learned"
    rows = np.asarray(tensor.numpy()[:3], np.float64)
    is_sinusoidal = (
        np.allclose((rows**2).sum(1), rows.shape[1] / 2, rtol=1e-3)
        and np.isclose(np.abs(rows[1]), np.sin(1.0), atol=1e-3).any()
        and set(np.round(rows[0], 3)) <= {0.0, 1.0}
    )
    # sines and cosines may be in any order: the squares of a row sum to half its width
    return "sinusoidal" if is_sinusoidal else "learned"


def _biases(subject: "Subject", file: str) -> Iterator[Recognised]:
    """Position biases that are added to the scores, each kind once."""
    kinds: dict[str, list[ir.Node]] = {}
    for attention in subject.attentions:
        for what in dict.fromkeys(_terms(attention, subject)):
            kinds.setdefault(what, []).append(attention.node)
    for what, nodes in kinds.items():
        text = f"{what}, in {len(nodes)} of {len(subject.attentions)}"
        yield Recognised(file=file, kind="attention bias", what=text, nodes=tuple(map(name_of, nodes)))


#: what is computed of frequencies, which are as slopes are
_ROTATIONS = {"Cos", "Sin"}


def _terms(attention: Attention, subject: "Subject") -> Iterator[str]:
    for value in attention.added:
        reached = list(sources(value, breaks=SHAPES | TRUTHS | _ROTATIONS))
        nodes = [node for each in reached if (node := each.producer()) is not None]
        if _is_product(value):
            yield "by content and distance (relative keys, disentangled)"
        elif tables := {name for node in nodes if (name := _table(node, subject)) is not None}:
            yield f"by distance, from the table {', '.join(sorted(tables))}"
        elif any(_is_slopes(each) for each in reached) and any(node.op_type in ("Range", "CumSum") for node in nodes):
            yield "by distance times a slope for each head (ALiBi)"


def _is_product(value: ir.Value) -> bool:
    """Whether a bias is a product of activations, moved: queries or keys times encodings of distances."""

    def onward(current: ir.Value) -> list[ir.Value | None]:
        node = current.producer()
        return [] if node is None or node.op_type not in _MOVES else list(node.inputs[: _MOVES[node.op_type]])

    products = (node for each in reachable([value], onward) if (node := each.producer()) is not None)
    return any(node.op_type in ("MatMul", "Einsum") and not node.domain for node in products)


def _table(node: ir.Node, subject: "Subject") -> str | None:
    """The name and shape of the table in which ``node`` looks up rows, except embeddings of tokens."""
    table = stored(node.inputs[0]) if node.op_type == "Gather" and not node.domain else None
    shape = subject.sizes.of(table)
    if table is None or shape is None or len(shape) < 2 or node.inputs[1] is None:
        return None
    if not {*subject.roles.ids, *subject.roles.types}.isdisjoint(sources(node.inputs[1], breaks=SHAPES | TRUTHS)):
        return None  # embeddings of tokens
    return f"{table.name!r} {subject.sizes.shape_text(shape)}"


def _is_slopes(value: ir.Value) -> bool:
    """Whether a constant has one slope per head, as ALiBi's 2^-1, 2^-2 ..."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not 1 < tensor.size <= 256 or not tensor.dtype.is_floating_point():
        return False
    slopes = np.abs(np.asarray(tensor.numpy(), np.float64)).reshape(-1)
    if not slopes.all() or len(set(slopes)) != len(slopes) or slopes.max() > 1:
        return False
    steps = np.diff(np.log2(slopes[: 1 << (len(slopes).bit_length() - 1)]))
    return bool(np.allclose(steps, steps[0], rtol=1e-3))

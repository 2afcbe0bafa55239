"""PX405: attention of several nodes becomes MultiHeadAttention, the operator that ONNX Runtime has kernels for."""

from collections.abc import Sequence

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.queries import only, producer
from posexport.inspect.audit.analyses.attention import lowest_score
from posexport.inspect.audit.analyses.written_out import NotKnownError, WrittenOut, written_out
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.repairs.wider import remove_unread
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject

_DOMAIN = "com.microsoft"
#: biases [B or 1, H or 1, T, S] by what they are made of: layers share them
_Biases = dict[tuple[object, ...], ir.Value]


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """All attentions of the place that are certain to be one operator.

    Before: ``Softmax(scale * MatMul(q, Transpose(k)) + mask) -> MatMul(.., v) -> Transpose -> Reshape [B, T, H D]``
    After:  ``MultiHeadAttention(q [B, T, H D], k, v, mask [B or 1, H or 1, T, S])``
    """
    known: list[WrittenOut] = []
    reasons: list[str] = []
    for attention in subject.attentions:
        if attention.node not in place.nodes or attention.node.graph is not subject.graph:
            continue
        try:
            known.append(written_out(attention, subject.sizes))
        except NotKnownError as err:
            reasons.append(str(err))
    if not known:
        raise NotRepairedError(reasons[0] if reasons else "it is in a branch or a loop")
    biases: _Biases = {}
    subject.model.opset_imports.setdefault(_DOMAIN, 1)
    return [_fuse(attention, biases) for attention in known]


def _fuse(attention: WrittenOut, biases: _Biases) -> ir.Value:
    """Write the operator in the place of the product of probabilities and values."""
    output = attention.output
    g = Builder.at(output)
    # queries are packed; keys and values are both packed, or both [B, H, S, D]
    q = attention.q
    for operator, factor in attention.factors:
        q = g.op(operator, q, factor)
    packed_q = _packed(q) or g.Reshape(g.Transpose(q, perm=[0, 2, 1, 3]), [0, 0, attention.heads * attention.size])
    k, v = _keys_and_values(g, attention)
    bias = _bias(g, attention, packed_q, biases)
    context = g.op(
        "MultiHeadAttention", packed_q, k, v, None, None, bias,
        domain=_DOMAIN, num_heads=attention.heads, scale=attention.scale,
    )  # fmt: skip
    context.type = output.outputs[0].type
    split = g.Reshape(context, [0, 0, attention.heads, attention.size_of_values])
    # most files transpose the context back at once
    result, after = output.outputs[0], only(output.outputs[0])
    if after is not None and after.op_type == "Transpose" and _order(after) == [0, 2, 1, 3]:
        result = after.outputs[0]
    else:
        split = g.Transpose(split, perm=[0, 2, 1, 3])
    last = result.producer()
    replace(result, split)
    remove_unread(last)
    return context


def _order(transpose: ir.Node) -> list[int]:
    return list(transpose.attributes.get_ints("perm") or ())


def _packed(value: ir.Value, permutation: Sequence[int] = (0, 2, 1, 3)) -> ir.Value | None:
    """[B, T, H D], which a Reshape and a Transpose split to ``value``; None where it comes from elsewhere."""
    transpose = producer(value, "Transpose")
    reshape = None if transpose is None else producer(transpose.inputs[0], "Reshape")
    if transpose is None or reshape is None or _order(transpose) != list(permutation):
        return None
    packed = reshape.inputs[0]
    return packed if packed is not None and packed.shape is not None and len(packed.shape) == 3 else None


def _keys_and_values(g: Builder, attention: WrittenOut) -> tuple[ir.Value, ir.Value]:
    """Both [B, S, H D], if both come from there, else both [B, H, S, D]."""
    keys = _split_keys(attention.k)
    packed_keys = _packed(attention.k, (0, 2, 3, 1)) if keys is None else _packed(keys)
    packed_values = _packed(attention.v)
    if packed_keys is not None and packed_values is not None:
        return packed_keys, packed_values
    return keys or g.Transpose(attention.k, perm=[0, 1, 3, 2]), attention.v


def _split_keys(k: ir.Value) -> ir.Value | None:
    """[B, H, S, D] of which ``k`` [B, H, D, S] is the transpose; None where no node transposes it so."""
    turned = producer(k, "Transpose")
    if turned is not None:
        return turned.inputs[0] if _order(turned) == [0, 1, 3, 2] else None
    # torch.export flattens batch and heads around the transposition
    flat = producer(k, "Reshape")
    turned = None if flat is None else producer(flat.inputs[0], "Transpose")
    split = None if turned is None else producer(turned.inputs[0], "Reshape")
    source = None if turned is None or split is None or _order(turned) != [0, 2, 1] else split.inputs[0]
    return source if source is not None and source.shape is not None and len(source.shape) == 4 else None


def _bias(g: Builder, attention: WrittenOut, q: ir.Value, biases: _Biases) -> ir.Value | None:
    """All that is added to the scores as [B or 1, H or 1, T, S], once for layers with the same."""
    key = (attention.guarded, *attention.terms)
    if not attention.terms:
        return None
    if key not in biases:
        dtype = attention.softmax.outputs[0].dtype or ir.DataType.FLOAT
        lowest = lowest_score(dtype)
        total: ir.Value | None = None
        for kind, value, keeps in attention.terms:
            if kind == "Add":
                total = value if total is None else g.Add(total, value)
            else:
                other = total if total is not None else lowest * 0
                total = g.Where(value, other, lowest) if keeps else g.Where(value, lowest, other)
        assert total is not None
        if attention.guarded:  # a query without keys gets the mean of all values, and no NaN
            total = g.Max(total, lowest)
        # kernels read a row for each query; the operator refuses biases that are not [B or 1, H or 1, T, S]
        biases[key] = g.Expand(total, g.shape([1], [1], g.size(q, 1), [1]))
    return biases[key]


REPAIR = Repair(does="attention of several nodes becomes MultiHeadAttention", apply=_apply)

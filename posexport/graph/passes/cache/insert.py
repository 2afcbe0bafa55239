"""Gives a decoder that was traced without a KV cache one, after attention is recognised."""

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from posexport.base.spec import BATCH, SEQUENCE
from posexport.graph.builder import Builder
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.partial import Array
from posexport.graph.passes.cache.attention import Cache, CachedAttention
from posexport.graph.passes.cache.colours import ask_ids_for_sizes, coloured
from posexport.graph.passes.cache.content import Content
from posexport.graph.passes.cache.counted import Counted
from posexport.graph.passes.cache.known import Known
from posexport.graph.passes.cache.row_rules import RULES
from posexport.graph.passes.cache.rows import Rows
from posexport.graph.passes.cache.whole import Whole
from posexport.graph.passes.graph_pass import NotInsertedError
from posexport.graph.passes.recognise.repeated_heads import Once, each_once
from posexport.graph.queries import sizes


@dataclass(frozen=True)
class Inserted:
    """What the KV cache of a graph holds.

    Attributes:
        shapes: of every attention: KV heads, channels of keys and of values.
        by_distance: of every attention: what it adds to its scores for the distances 0, 1, 2 ... [H or 1, D]; None
            where that is nothing, or no function of the distance alone.
        of_last: the traced graph returned the logits of the last token; this one returns those of every new token.
    """

    shapes: tuple[tuple[int, int, int], ...]
    by_distance: tuple[Array | None, ...]
    of_last: bool


def insert_cache(
    model: ir.Model,
    ids: str,
    mask: str | None,
    limit: int | None,
    positions: str | None = None,
    *,
    static: bool = False,
    at_read: bool = False,
) -> Inserted:
    """Change ``model``, a decoder of all tokens of a call, into one that computes new tokens with a cache.

    Before: ``input_ids [B, T], attention_mask [B, T], position_ids [B, T] -> logits [B, T, V]``
    After:  ``input_ids [B, T], attention_mask [B, S], past_key_values.*, position_ids [B, T] -> logits [B, T, V],
    present.*``

    What reads elements of the ids is content, and computes new tokens only. All else follows from sizes, the mask and
    weights; it is what the module computes for one row alone without padding, whatever a call is padded with: its rows
    for the new tokens are computed by their positions, which the mask over all tokens counts. What mixes tokens outside
    attention is refused.

    Args:
        model: with attention and rotations recognised (phase "recognise" of the passes).
        ids, mask, positions: names of the inputs; there are no others.
        limit: the longest input that the module takes.
        static: past and present are slots of a static cache.
        at_read: keys are kept as they are before their rotation.

    Raises:
        NotInsertedError: why the graph cannot have a cache, with the user's line.
    """
    graph, inputs = model.graph, {value.name: value for value in model.graph.inputs}
    if set(inputs) != {ids, *filter(None, (mask, positions))} or len(graph.outputs) != 1:
        raise NotInsertedError("its inputs must be ids, a mask and positions alone, its output logits alone")
    of_ids, of_mask = inputs[ids], inputs[mask] if mask else None
    of_positions = inputs[positions] if positions else None
    of_ids.shape = ir.Shape([BATCH, SEQUENCE])

    # values of sizes and weights, computed before anything changes
    g = Builder.at(graph[-1], after=True, name="cached")
    colours = coloured(graph, of_ids, of_mask, of_positions)
    ask_ids_for_sizes(graph, colours, g)
    known, once = Known(model, colours, limit), _repeated(model)

    # the graph's content, node by node, with rows of the rest
    counted = Counted.of(g, of_ids, of_positions)
    whole = Whole(g, colours, counted)
    content = Content(g, colours, known, Rows(g, known, whole, counted, RULES), whole)
    cache = Cache(counted, static)
    attention = CachedAttention(content, counted, cache, once, at_read=at_read)
    try:
        for node in [node for node in graph if colours.content & set(node.outputs)]:
            _follow(node, content, attention)
    except NotInsertedError as err:
        err.causal = bool(cache.past)
        raise
    if not cache.past:
        raise NotInsertedError("it has no attention that posexport recognises")
    _finish(model, content, counted, cache)
    return Inserted(_shapes(cache), tuple(attention.by_distance), content.of_last)


def _follow(node: ir.Node, content: Content, attention: CachedAttention) -> None:
    """Follow tokens through a node that reads them."""
    spec = AttentionSpec.of(node)
    if spec is not None:
        attention.follow(node, spec)
    elif RotationSpec.of(node) is not None:
        attention.rotate(node)
    else:
        content.follow(node)


def _shapes(cache: Cache) -> tuple[tuple[int, int, int], ...]:
    pairs = [[sizes(past) or () for past in pair] for pair in zip(cache.past[::2], cache.past[1::2], strict=True)]
    return tuple((int(key[1]), int(key[3]), int(value[3])) for key, value in pairs)


def _repeated(model: ir.Model) -> dict[ir.Value, Once]:
    """Keys and values that repeat heads the same number of times, and what they repeat."""
    repeated: dict[ir.Value, Once] = {}
    for node in model.graph:
        spec = AttentionSpec.of(node)
        if spec is None or spec.grouped:
            continue
        named = spec.named_inputs(node)
        pair = [None if named[name] is None else each_once(model, x) for name in "kv" if (x := named[name]) is not None]
        for name, once in zip("kv", pair, strict=True):
            x = named[name]
            if None not in pair and once is not None and x is not None:
                repeated[x] = once
    return repeated


def _finish(model: ir.Model, content: Content, counted: Counted, cache: Cache) -> None:
    """Rename and reorder inputs and outputs: the mask over all tokens, past and present keys and values."""
    graph, colours = model.graph, content.colours
    (logits,) = graph.outputs
    if content.axis.get(logits) != 1 and logits not in content.flat:
        raise NotInsertedError("its output's tokens are not on axis 1")
    if logits in content.flat:
        vocabulary = (sizes(logits) or ())[-1]
        shape = content.g.shape(counted.batch, counted.new, [int(vocabulary)])
        graph.outputs[0] = content.g.op("Reshape", logits, shape, shape=[BATCH, SEQUENCE, vocabulary])
    graph.sort()
    # the old mask has no reader any more
    RemoveUnusedNodesPass()(model)
    if colours.mask is not None:
        if colours.mask.uses():
            raise NotInsertedError("its mask is read by more than attention and positions")
        graph.inputs.remove(colours.mask)
    colours.ids.name, counted.mask.name = "input_ids", "attention_mask"
    graph.inputs.insert(1, counted.mask)
    if colours.positions is not None:  # the last input, as of other decoders
        graph.inputs.remove(colours.positions)
    graph.inputs.extend([*cache.past, *([] if colours.positions is None else [colours.positions])])
    for past, present in zip(cache.past, cache.present, strict=True):
        present.name = (past.name or "").replace("past_key_values", "present")
        graph.outputs.append(present)
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
    graph.outputs[0].name = "logits"

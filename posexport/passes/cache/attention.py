"""Attention over past and new tokens: keys and values are appended to the past, masks and operators get their rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder, Operand
from posexport.graph.edits import take_place
from posexport.graph.queries import sizes
from posexport.ops.attention import AttentionSpec
from posexport.ops.dropped_scores import drops
from posexport.ops.operator import Operator
from posexport.passes.cache.colours import refuse
from posexport.passes.cache.content import Content, name_tokens
from posexport.passes.cache.counted import LOWEST, Counted
from posexport.passes.recognise.repeated_heads import Once
from posexport.spec import BATCH, PAST, SEQUENCE, TOTAL


@dataclass
class Cache:
    """The new inputs and outputs of the graph, a pair of keys and values for each attention."""

    past: list[ir.Value]
    present: list[ir.Value]

    def append(self, g: Builder, x: ir.Value) -> ir.Value:
        """Append keys or values [B, G, T, D] to the past: [B, G, S, D]."""
        _, heads, _, size = sizes(x) or ()
        layer, kind = divmod(len(self.past), 2)
        name = f"{layer}.{('key', 'value')[kind]}"
        kind_of_past = ir.TensorType(ir.DataType.FLOAT)
        past = ir.Value(name=f"past_key_values.{name}", shape=ir.Shape([BATCH, heads, PAST, size]), type=kind_of_past)
        joined = g.op("Concat", past, x, axis=2, shape=[BATCH, heads, TOTAL, size])
        self.past.append(past)
        self.present.append(joined)
        return joined


class CachedAttention:
    """Gives attention nodes a cache.

    ``once``: keys and values that repeat heads -> what they repeat, which the cache has.
    """

    def __init__(self, content: Content, counted: Counted, cache: Cache, once: Mapping[ir.Value, Once]) -> None:
        self.content, self.counted, self.cache, self.once = content, counted, cache, once
        self.g = content.g

    def follow(self, node: ir.Node, spec: AttentionSpec) -> None:
        """An attention node of the traced graph, replaced by one over past and new tokens."""
        content, named = self.content, spec.named_inputs(node)
        for name in "qkv":
            if content.axis.get(named[name] or content.colours.ids) != 2 or named[name] in content.flat:
                refuse(node, f"its {name} is not [B, H, T, D] of tokens")
        mask = named.get("mask")
        if spec.mask != "pairs" and not spec.causal:
            refuse(node, "its attention sees later tokens")
        if mask is None or (spec.mask == "keys" and self._keeps_all(mask)):
            changed, inputs = replace(spec, mask="keys"), {**named, "mask": self.counted.padding}
        else:
            changed, inputs = replace(spec, causal=True), {**named, "mask": self._by_positions(node, spec, mask)}
        for part, operator in spec.operators.items():
            inputs |= self._parameters(node, part, operator, inputs)
        inputs |= {"qpos": self.counted.queries, "kpos": self.counted.keys}
        inputs |= {name: self._with_past(named[name]) for name in "kv"}
        cached = changed.node(inputs, like=node)
        cached.metadata_props.update(node.metadata_props)
        take_place(cached, node)
        for output in cached.outputs:
            content.axis[output] = 2
            content.colours.content.add(output)
            name_tokens(output, 2)

    def _with_past(self, x: ir.Value | None) -> ir.Value:
        """Keys or values of all tokens; the cache has each head once."""
        assert x is not None
        g, once = self.g, self.once.get(x)
        if once is None:
            return self.cache.append(g, x)
        before = g.Transpose(once.value, perm=[0, 2, 1, 3]) if once.tokens_first else once.value
        before.shape = ir.Shape([BATCH, once.heads, SEQUENCE, (sizes(x) or ())[3]])
        joined = self.cache.append(g, before)
        _, heads, _, size = (int(n) if isinstance(n, int) else 0 for n in sizes(x) or ())
        wide = g.Expand(g.Unsqueeze(joined, [2]), [1, 1, heads // once.heads, 1, 1])
        shape = g.shape(self.counted.batch, [heads], self.counted.total, [size])
        return g.op("Reshape", wide, shape, shape=[BATCH, heads, TOTAL, size])

    def _parameters(
        self, node: ir.Node, part: str, operator: Operator, inputs: Mapping[str, ir.Value | None]
    ) -> dict[str, ir.Value]:
        """The tensors of an operator: rows for the new tokens, for all tokens, or all distances."""
        content, g = self.content, self.g
        known, tensors, firsts = content.known, dict[str, ir.Value](), dict[str, dict[int, Operand]]()
        for name in operator.own:
            x, rows = inputs[f"{part}_{name}"], operator.rows.get(name)
            assert x is not None
            if rows is not None and rows.first is not None and rows.of != "distances":
                parameter, place = rows.first
                firsts.setdefault(parameter, {})[place] = self.counted.past if rows.of == "queries" else [0]
            if x in content.colours.content:
                if rows is None or rows.of != "queries" or content.axis[x] != rows.axis:
                    refuse(node, f"{operator.name} reads {name} of tokens")
            elif x in content.colours.sized and (rows is None or rows.of == "distances"):
                self._check_listed(node, x, None if rows is None else rows.axis)
                tensors[f"{part}_{name}"] = content.whole.of(x)
            elif x in content.colours.sized and rows is not None and rows.of != "distances":
                if known.token_axes(x) != [rows.axis]:
                    refuse(node, f"{operator.name} reads {name}, which is not of its tokens")
                known.check(node, x, [rows.axis])
                picked = content.rows.pick(x, {rows.axis: rows.of})
                tensors[f"{part}_{name}"] = g.Squeeze(picked, [1])
        for name, places in firsts.items():
            parts = [places[place] for place in sorted(places)]
            tensors[f"{part}_{name}"] = g.Identity(parts[0]) if len(parts) == 1 else g.shape(*parts)
        return tensors

    def _check_listed(self, node: ir.Node, x: ir.Value, axis: int | None) -> None:
        """Refuse numbers by distance that for fewer tokens are not a part of those for more."""
        known = self.content.known
        if not known.has(x):
            refuse(node, "numbers by distance come from a position operator")
        arrays, lengths = known.arrays(x), known.all_lengths(x)
        most, longest = arrays[-1], lengths[-1]
        if axis is None:  # the lowest distance: 1 - T, or one number
            numbers = [array.reshape(-1).tolist() for array in arrays]
            if any(other != numbers[0] for other in numbers) and numbers != [[1 - length] for length in lengths]:
                refuse(node, "a number that it reads depends on how many tokens a call has")
            return
        for array, length in zip(arrays, lengths, strict=True):
            width, full = array.shape[axis], most.shape[axis]
            start = {(length, longest): 0, (2 * length - 1, 2 * longest - 1): longest - length}.get((width, full), 0)
            part = most.take(range(start, min(start + width, full)), axis)
            if part.shape != array.shape or not np.allclose(part, array, rtol=1e-5, atol=1e-5):
                refuse(node, "numbers by distance depend on how many tokens a call has")
        if known.may_differ(x):
            refuse(node, f"numbers by distance may differ beyond the {longest} tokens that were looked at")

    def _keeps_all(self, mask: ir.Value) -> bool:
        """Whether a mask of keys is that of padding alone: it adds 0 in a row without padding."""
        known = self.content.known
        return known.has(mask) and not known.may_differ(mask) and not any(x.any() for x in known.arrays(mask))

    def _by_positions(self, node: ir.Node, spec: AttentionSpec, mask: ir.Value) -> ir.Value:
        """A mask over keys or pairs of tokens by their positions, [B, H or 1, T or 1, S]."""
        content, g = self.content, self.g
        known, axes = content.known, content.known.token_axes(mask)
        if mask in content.colours.content or not known.has(mask) or 3 not in axes:
            refuse(node, "its mask is not one of positions")
        array, length = known.arrays(mask)[-1], known.all_lengths(mask)[-1]
        earlier = np.tril(np.ones((length, length), bool))
        if array.shape[0] != 1:
            refuse(node, "its mask differs from row to row")
        array = np.broadcast_to(array, (*array.shape[:2], length, length))
        if not spec.causal and not drops(array[..., ~earlier]).all():
            refuse(node, "its attention sees later tokens")
        for other, fewer in zip(known.arrays(mask), known.all_lengths(mask), strict=True):
            wide = np.broadcast_to(other, (*other.shape[:2], fewer, fewer))
            same = np.isclose(wide, array[..., :fewer, :fewer], rtol=1e-5, atol=1e-5)
            both_drop = drops(wide) & drops(array[..., :fewer, :fewer])
            if not (same | both_drop | ~earlier[:fewer, :fewer]).all():
                refuse(node, "a row of its mask depends on how many tokens a call has")
        if known.may_differ(mask):
            refuse(node, f"its mask has a number or a table beyond the {length} tokens that were looked at")
        picked = content.rows.pick(mask, {axis: "queries" if axis == 2 else "keys" for axis in axes})
        heads = known.arrays(mask)[0].shape[1]
        total = g.Max(g.Add(g.Squeeze(picked, [1]), self.counted.padding), LOWEST)
        total.shape = ir.Shape([BATCH, heads, SEQUENCE if 2 in axes else 1, TOTAL])
        return total

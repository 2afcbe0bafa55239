"""Replaces traced attention by attention over past and new tokens.

Keys and values are appended to the cache; masks and position terms are computed for the positions of the new tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from posexport.base.spec import BATCH, CAPACITY, PAST, SEQUENCE, TOTAL
from posexport.graph.builder import Builder, Operand
from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.distance_scores import DISTANCE_SCORES
from posexport.graph.ops.dropped_scores import LOWEST, drops
from posexport.graph.ops.operator import Operator
from posexport.graph.partial import Array
from posexport.graph.passes.cache.colours import refuse, sees_later
from posexport.graph.passes.cache.content import Content, name_tokens
from posexport.graph.passes.cache.counted import Counted
from posexport.graph.passes.recognise.repeated_heads import Once
from posexport.graph.queries import sizes


@dataclass
class Cache:
    """The KV cache as new inputs and outputs of the graph: a pair of keys and values for each attention node.

    Attributes:
        counted: sizes and positions of the call.
        static: whether past and present have a fixed capacity; the mask's length is the number of used slots.
    """

    counted: Counted
    static: bool = False
    past: list[ir.Value] = field(default_factory=list)
    present: list[ir.Value] = field(default_factory=list)

    def append(self, g: Builder, x: ir.Value) -> ir.Value:
        """Append keys or values [B, G, T, D] to the past; returns the present: [B, G, S, D], or [B, G, M, D] slots."""
        _, heads, _, size = sizes(x) or ()
        layer, kind = divmod(len(self.past), 2)
        name = f"{layer}.{('key', 'value')[kind]}"
        axes = (CAPACITY, CAPACITY) if self.static else (PAST, TOTAL)
        kind_of_past = ir.TensorType(ir.DataType.FLOAT)
        shape = ir.Shape([BATCH, heads, axes[0], size])
        past = ir.Value(name=f"past_key_values.{name}", shape=shape, type=kind_of_past)
        if self.static:
            first = g.Expand(self.counted.past, self.counted.batch)
            present = g.op("TensorScatter", past, x, first, axis=2)
            present.type = kind_of_past
        else:
            present = g.op("Concat", past, x, axis=2)
        present.shape = ir.Shape([BATCH, heads, axes[1], size])
        self.past.append(past)
        self.present.append(present)
        return present

    def used(self, g: Builder, present: ir.Value) -> ir.Value:
        """The used slots of ``present``, [B, G, S, D]."""
        if not self.static:
            return present
        _, heads, _, size = sizes(present) or ()
        return g.op("Slice", present, [0], self.counted.total, [2], shape=[BATCH, heads, TOTAL, size])


class CachedAttention:
    """Adds a KV cache to attention nodes.

    Attributes:
        once: keys or values with repeated heads -> the value before the repetition, which is cached.
        at_read: keys are cached before RoPE and rotated in every call.
        rotations: rotated value -> its node, and the cosines and sines of the traced graph.
        by_distance: for each attention, the bias [H or 1, D] at the distances 0, 1, 2 ...; None if it has no bias, or
            one that does not depend on the distance alone.
    """

    def __init__(
        self,
        content: Content,
        counted: Counted,
        cache: Cache,
        once: Mapping[ir.Value, Once],
        *,
        at_read: bool = False,
    ) -> None:
        self.content, self.counted, self.cache, self.once = content, counted, cache, once
        self.g = content.g
        self.at_read = at_read
        self.rotations: dict[ir.Value, tuple[ir.Node, Sequence[ir.Value]]] = {}
        self.by_distance: list[Array | None] = []

    def follow(self, node: ir.Node, spec: AttentionSpec) -> None:
        """Replace an attention node of the traced graph by one over past and new tokens."""
        content, named = self.content, spec.named_inputs(node)
        for name in "qkv":
            if content.axis.get(named[name] or content.colours.ids) != 2 or named[name] in content.flat:
                refuse(node, f"its {name} is not [B, H, T, D] of tokens")
        mask = named.get("mask")
        if spec.mask != "pairs" and not spec.causal:
            sees_later(node)
        self.by_distance.append(None)
        keeps_all = mask is None or (spec.mask == "keys" and self._keeps_all(mask))
        by_positions = None if mask is None or keeps_all else self._by_positions(node, spec, mask)
        # the mask of the new node: padding, and the part of the traced mask that is not causality
        if by_positions is None:
            changed, inputs = replace(spec, mask="keys", causal=True), {**named, "mask": self.counted.padding}
        else:
            changed, inputs = replace(spec, causal=True), {**named, "mask": by_positions}
        for part, operator in spec.operators.items():
            inputs |= self._parameters(node, part, operator, inputs)
        inputs |= {"qpos": self.counted.queries, "kpos": self.counted.keys}
        presents = {name: self._with_past(named[name]) for name in "kv"}
        changes = any(named[name] in self.once or self._rotation(named[name]) is not None for name in "kv")
        if self.cache.static and not spec.operators and not changes:
            # the operator reads the static cache in place
            changed = replace(changed, cache="static")
            inputs |= presents
        else:
            inputs |= {name: self._all_heads(named[name], present) for name, present in presents.items()}
        cached = changed.node(inputs, like=node)
        cached.metadata_props.update(node.metadata_props)
        take_place(cached, node)
        for output in cached.outputs:
            content.axis[output] = 2
            content.colours.content.add(output)
            name_tokens(output, 2)

    def rotate(self, node: ir.Node) -> None:
        """Give a Rotation of x [B, H, T, D] the cosines and sines [1 or B, 1, T, F] of each row's new tokens."""
        content, (x, *angles), output = self.content, node.inputs, node.outputs[0]
        if x is None or content.axis.get(x) != 2:
            refuse(node, "it rotates other axes than its tokens and channels")
        content.axis[output] = 2
        traced = [value for value in angles if value is not None]
        for index, value in enumerate(traced, 1):
            if content.known.token_axes(value) != [2]:
                refuse(node, "its angles are not those of its tokens")
            content.known.check(node, value, [2])
            node.replace_input_with(index, content.placed(node, value, 2, output))
        node.attributes.pop("spec_shared", None)
        self.rotations[output] = node, traced

    def _rotation(self, x: ir.Value | None) -> tuple[ir.Node, Sequence[ir.Value]] | None:
        """The rotation of keys that are cached unrotated; None for other values."""
        once = None if x is None else self.once.get(x)
        rotated = x if once is None else once.value
        return self.rotations.get(rotated) if self.at_read and rotated is not None else None

    def _with_past(self, x: ir.Value | None) -> ir.Value:
        """Append keys or values to the cache, without repeated heads; returns the present."""
        assert x is not None
        g, once, rotation = self.g, self.once.get(x), self._rotation(x)
        before = x if once is None else once.value
        if rotation is not None:
            before = rotation[0].inputs[0] or before
        if once is None:
            return self.cache.append(g, before)
        before = g.Transpose(before, perm=[0, 2, 1, 3]) if once.tokens_first else before
        before.shape = ir.Shape([BATCH, once.heads, SEQUENCE, (sizes(x) or ())[3]])
        return self.cache.append(g, before)

    def _all_heads(self, x: ir.Value | None, present: ir.Value) -> ir.Value:
        """Keys or values of all tokens, with heads repeated as in ``x``."""
        assert x is not None
        g, once, rotation = self.g, self.once.get(x), self._rotation(x)
        joined = self.cache.used(g, present)
        if rotation is not None:
            node, traced = rotation
            angles = [self.content.placed(node, value, 2, joined, "keys") for value in traced]
            (rotated,) = g.several("Rotation", [""], joined, *angles, domain=node.domain, **_attributes(node))
            rotated.type, rotated.shape = joined.type, joined.shape
            joined = rotated
        if once is None:
            return joined
        _, heads, _, size = (int(n) if isinstance(n, int) else 0 for n in sizes(x) or ())
        wide = g.Expand(g.Unsqueeze(joined, [2]), [1, 1, heads // once.heads, 1, 1])
        shape = g.shape(self.counted.batch, [heads], self.counted.total, [size])
        return g.op("Reshape", wide, shape, shape=[BATCH, heads, TOTAL, size])

    def _parameters(
        self, node: ir.Node, part: str, operator: Operator, inputs: Mapping[str, ir.Value | None]
    ) -> dict[str, ir.Value]:
        """The tensors of a position term, selected for the new tokens, for all tokens, or for all distances."""
        content, g = self.content, self.g
        known, tensors, firsts = content.known, dict[str, ir.Value](), dict[str, dict[int, Operand]]()
        if operator is DISTANCE_SCORES:
            self._note_distances(*(inputs[f"{part}_{name}"] for name in operator.own))
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

    def _note_distances(self, by_distance: ir.Value | None, lowest: ir.Value | None) -> None:
        """Record the bias from distance 0 on, taken from the longest length that was computed."""
        numbers, first = (self._longest(x) for x in (by_distance, lowest))
        if numbers is not None and first is not None and (start := -int(first.reshape(-1)[0])) < numbers.shape[1]:
            self.by_distance[-1] = numbers[:, max(start, 0) :]

    def _longest(self, x: ir.Value | None) -> Array | None:
        """The elements of ``x`` at the longest length that was computed; None if they are unknown."""
        if x is None or self.content.known.has(x):
            return None if x is None else self.content.known.arrays(x)[-1]
        node = x.producer()
        if node is not None and node.op_type == "Cast":
            return self._longest(node.inputs[0])
        return None if x.const_value is None else x.const_value.numpy()

    def _check_listed(self, node: ir.Node, x: ir.Value, axis: int | None) -> None:
        """Refuse a table by distance if the table for fewer tokens is not a part of the table for more tokens."""
        known = self.content.known
        if x in self.content.colours.opaque:  # an operator of posexport's
            return
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
        """Whether a mask of keys masks only padding: it adds 0 in a row without padding."""
        known = self.content.known
        return known.has(mask) and not known.may_differ(mask) and not any(x.any() for x in known.arrays(mask))

    def _by_positions(self, node: ir.Node, spec: AttentionSpec, mask: ir.Value) -> ir.Value | None:
        """The mask [B, H or 1, T or 1, S] for the positions of the tokens; None if it is only causality."""
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
            if drops(array[..., ~earlier]).any():
                refuse(node, "its attention sees some later tokens")
            sees_later(node)
        if drops(array[0, 0, -1]).any():  # a window, and maybe a bias
            self.by_distance[-1] = np.where(drops(array[0, :, -1, ::-1]), -np.inf, 0)
        for other, fewer in zip(known.arrays(mask), known.all_lengths(mask), strict=True):
            wide = np.broadcast_to(other, (*other.shape[:2], fewer, fewer))
            same = np.isclose(wide, array[..., :fewer, :fewer], rtol=1e-5, atol=1e-5)
            both_drop = drops(wide) & drops(array[..., :fewer, :fewer])
            if not (same | both_drop | ~earlier[:fewer, :fewer]).all():
                refuse(node, "a row of its mask depends on how many tokens a call has")
        if known.may_differ(mask):
            refuse(node, f"its mask has a number or a table beyond the {length} tokens that were looked at")
        if not array[..., earlier].any():
            return None
        picked = content.rows.pick(mask, {axis: "queries" if axis == 2 else "keys" for axis in axes})
        heads = known.arrays(mask)[0].shape[1]
        total = g.Max(g.Add(g.Squeeze(picked, [1]), self.counted.padding), LOWEST)
        total.shape = ir.Shape([BATCH, heads, SEQUENCE if 2 in axes else 1, TOTAL])
        return total


def _attributes(node: ir.Node) -> dict[str, object]:
    return {name: attribute.value for name, attribute in node.attributes.items()}

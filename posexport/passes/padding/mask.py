"""The padding mask that all attention of a graph has: which input it is, and that padding is dropped by it."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.graph.queries import sizes
from posexport.ops.attention import AttentionSpec
from posexport.passes.mask_structure import computed, part

Axes = tuple[int | str, ...]
#: lengths of three rows that are looked at
_LENGTHS, _LONGEST = (7, 3, 1), 7


@dataclass(frozen=True)
class PaddingMask:
    """``input``: of the graph, [B, T], not 0 for real tokens. ``values``: what attention adds, made of it alone."""

    input: ir.Value
    values: Collection[ir.Value]

    @property
    def lead(self) -> Axes:
        """The names of the axes B and T."""
        return sizes(self.input) or ()

    def decides(self, value: ir.Value | None) -> bool:
        """``value`` is made of the mask and of constants."""
        return value is not None and value.const_value is None and inputs_of(value) == {self.input}


def padding_mask(model: ir.Model) -> PaddingMask | str:
    """What every attention of the graph has, or why there is none."""
    values: dict[ir.Value, None] = {}
    for node in model.graph:
        spec = AttentionSpec.of(node)
        if spec is None:
            continue
        value = None if spec.mask == "none" else spec.named_inputs(node)["mask"]
        if value is None:
            return "attention has no padding mask"
        if spec.cache != "none":
            return "attention has a KV cache"
        values[value] = None
    masks = {each for value in values for each in inputs_of(value)}
    if len(masks) != 1:
        return "attention has no mask that is of one input alone" if values else "there is no attention node"
    (mask,) = masks
    lead = sizes(mask) or ()
    if len(lead) != 2 or not all(isinstance(size, str) for size in lead):
        return f"the mask {mask.name} is not of rows and tokens"
    return (
        PaddingMask(mask, values)
        if all(_drops(model, mask, value) for value in values)
        else (f"what attention adds for {mask.name} does not drop tokens where that is 0")
    )


def inputs_of(value: ir.Value) -> set[ir.Value]:
    """The inputs of the graph that ``value`` depends on."""
    inputs, waiting, seen = set(), [value], {value}
    while waiting:
        each = waiting.pop()
        node = each.producer()
        if node is None and each.const_value is None:
            inputs.add(each)
        for read in node.inputs if node is not None else ():
            if read is not None and read not in seen:
                seen.add(read)
                waiting.append(read)
    return inputs


def _drops(model: ir.Model, source: ir.Value, value: ir.Value) -> bool:
    """Whether no query sees a token at which the input is 0, and every query sees all others or may."""
    assert source.dtype is not None
    real = np.arange(_LONGEST) < np.asarray(_LENGTHS)[:, None]
    graph = part(model, [source], value)
    if graph is None:
        return False
    (mask,) = computed(model, graph, [{source.name or "": real.astype(source.dtype.numpy())}])
    if mask.shape[-1] != _LONGEST:  # of frames, which convolutions make of what the input masks
        return False
    dropped = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (len(real), 1, 1, _LONGEST)))
    dropped = dropped <= np.finfo(np.float32).min / 4
    return bool(dropped[np.broadcast_to(~real[:, None, None], dropped.shape)].all() and not dropped[0].all())

"""Finds the padding mask that all attention nodes of a graph share, and checks that it masks padding.

Mostly it is an input of the graph. If convolutions compute tokens from masked samples, it is the mask of frames that
the graph computes from the mask of samples.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.refusal import Refusal
from posexport.graph.dataflow import inputs
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.dropped_scores import drops
from posexport.graph.partial import Subgraph
from posexport.graph.queries import sizes

Axes = tuple[int | str, ...]
#: sequence lengths of three rows for the check, and the longest
_LENGTHS, _LONGEST = (7, 3, 1), 7
#: past tokens for the check of a decoder
_PAST = 2
#: dtypes of a mask of real tokens
_FLAGS = {ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64}
_NOT_ONE = "attention has no mask that is of one input alone"
_KEEPS = "what attention adds for {} does not drop tokens where that is 0"


@dataclass(frozen=True)
class PaddingMask:
    """The padding mask ``tokens`` [B, T], not 0 for real tokens, and the masks of attention computed from it only."""

    tokens: ir.Value
    values: Collection[ir.Value]

    @property
    def lead(self) -> Axes:
        """The names of the axes B and T."""
        return sizes(self.tokens) or ()

    def decides(self, value: ir.Value | None) -> bool:
        """Whether ``value`` is computed from the mask and constants only."""
        return (
            value is not None
            and value.const_value is None
            and inputs(value, stops=[self.tokens], breaks=()) == {self.tokens}
        )


def padding_mask(model: ir.Model) -> PaddingMask | Refusal:
    """The padding mask of all attention nodes, or the reason why there is none."""
    values: dict[ir.Value, None] = {}
    for node in model.graph:
        spec = AttentionSpec.of(node)
        if spec is None:
            continue
        value = None if spec.mask == "none" else spec.named_inputs(node)["mask"]
        if value is None:
            return Refusal("attention has no padding mask")
        if spec.cache != "none":
            return Refusal("attention has a KV cache")
        values[value] = None
    masks = {source for value in values for source in inputs(value, breaks=())}
    if not values:
        return Refusal("there is no attention node")
    if len(masks) != 1:
        several = len({sizes(value) for value in values}) > 1
        return Refusal("attention is not all over the same tokens" if several else _NOT_ONE)
    (mask,) = masks
    if not _is_of_tokens(mask):
        return Refusal(f"the mask {mask.name} is not of rows and tokens")
    real = np.arange(_LONGEST) < np.asarray(_LENGTHS)[:, None]
    for tokens in (mask, *_computed_masks(model.graph, mask, values)):
        if all(_drops(model, {tokens: real.astype(_type(tokens))}, value, real) for value in values):
            return PaddingMask(tokens, values)
    return Refusal(_KEEPS.format(mask.name))


def _is_of_tokens(mask: ir.Value) -> bool:
    lead = sizes(mask) or ()
    return len(lead) == 2 and all(isinstance(size, str) for size in lead)


def _computed_masks(graph: ir.Graph, mask: ir.Value, values: Collection[ir.Value]) -> Iterator[ir.Value]:
    """Masks of the keys computed from ``mask`` that determine ``values``, in topological order."""
    keys = {(sizes(value) or ("",))[-1] for value in values}

    def is_it(candidate: ir.Value) -> bool:
        of_keys = candidate.dtype in _FLAGS and _is_of_tokens(candidate) and {(sizes(candidate) or ())[1]} == keys
        return (
            of_keys
            and inputs(candidate, breaks=()) == {mask}
            and all(inputs(value, stops=[candidate], breaks=()) == {candidate} for value in values)
        )

    return filter(is_it, (value for node in graph for value in node.outputs))


def mask_of_new_tokens(model: ir.Model, attention: Sequence[ir.Node], lead: Axes) -> ir.Value | Refusal:
    """The input [B, S] over past and new tokens that masks the keys of ``attention``, or why there is none."""
    specs = [(node, AttentionSpec.of(node)) for node in attention]
    added = [None if spec is None or spec.mask == "none" else spec.named_inputs(node)["mask"] for node, spec in specs]
    values = dict.fromkeys(value for value in added if value is not None)
    if None in added:
        return Refusal("attention has no padding mask")
    masks = {source for value in values for source in inputs(value)}
    if len(masks) != 1:
        return Refusal(_NOT_ONE)
    (mask,) = masks
    axes = sizes(mask) or ()
    if len(axes) != 2 or axes[0] != lead[0] or not isinstance(axes[1], str):
        return Refusal(f"the mask {mask.name} is not of rows and tokens")
    length = {lead[0]: len(_LENGTHS), lead[1]: _LONGEST, axes[1]: _PAST + _LONGEST}
    real = np.arange(_PAST + _LONGEST) < _PAST + np.asarray(_LENGTHS)[:, None]
    feeds = {
        value: np.zeros(
            [size if isinstance(size, int) else length.get(size, _PAST) for size in sizes(value) or ()], _type(value)
        )
        for value in model.graph.inputs
        if value.const_value is None
    }
    feeds[mask] = real.astype(_type(mask))
    return mask if all(_drops(model, feeds, value, real) for value in values) else Refusal(_KEEPS.format(mask.name))


def _drops(model: ir.Model, feeds: Mapping[ir.Value, NDArray[Any]], value: ir.Value, real: NDArray[np.bool_]) -> bool:
    """Whether the mask ``value`` masks every token that is not ``real`` [B, S], and not all of the first row."""
    subgraph = Subgraph(model, [value], list(feeds))
    known = subgraph.run(feeds) if subgraph.is_standard else None
    if known is None:
        return False
    (mask,) = known
    # masks of frames after convolutions, or with an axis of heads instead of the batch, have other sizes
    if mask.shape[-1] != real.shape[1] or mask.shape[0] not in (1, len(real)):
        return False
    dropped = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (len(real), 1, 1, real.shape[1])))
    dropped = drops(dropped)
    return bool(dropped[np.broadcast_to(~real[:, None, None], dropped.shape)].all() and not dropped[0].all())


def _type(value: ir.Value) -> np.dtype[Any]:
    assert value.dtype is not None
    return value.dtype.numpy()

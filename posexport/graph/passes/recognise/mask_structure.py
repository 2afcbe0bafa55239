"""Recognises causal masks, padding masks and both in one, by their values at several sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from posexport.base.refusal import Refusal
from posexport.graph.builder import Builder
from posexport.graph.edits import take_place
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.dropped_scores import DROPPED_DISTANCE, drops
from posexport.graph.partial import Array, Subgraph
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.recognise.content_bias import counted
from posexport.graph.passes.recognise.masks import by_mask
from posexport.graph.passes.recognise.recognition import Recognition
from posexport.graph.queries import sizes

Samples = Sequence[Mapping[str, Array]]
Structure = Literal["keys", "causal", "causal keys"]
#: numbers from here on are ends of slices and what drops a score
_NO_LENGTH = 1 << 31
_END = int(np.iinfo(np.int64).max)
_NO_STRUCTURE = Refusal("its mask over pairs of tokens is not causality and padding alone")


class MaskStructure(Recognition):
    """Causality and padding in place of a mask over pairs of tokens.

    Before: ``Where(tril And padding, 0, -inf) [B, 1, T, S] -> posexport::Attention (mask over pairs)``
    After:  ``Slice(.., last query) [B, 1, 1, S] -> posexport::Attention (causal, mask over keys)``

    A module may give its causality as a mask that it keeps, makes of tril, or joins with padding. Attention that knows
    it looks at half of the keys, tile by tile. What a mask is beyond the longest input that was looked at must follow:
    one with a number or a table that large (a window of 4096 tokens looks causal below) stays as it is.
    """

    name = "mask-structure"
    description = "masks over pairs of tokens that are causality and padding"

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Apply the pass; the result counts attention nodes."""
        reasons: list[str | None] = []
        for mask, nodes in by_mask(model, lambda _, spec: not spec.causal).items():
            if sizes(mask) is None:
                continue
            structure = _structure(model, mask, context.samples)
            for node, spec in nodes:
                if not isinstance(structure, Refusal):
                    _change(node, spec, mask, structure)
                reasons.append(structure.reason if isinstance(structure, Refusal) else None)
        return PassResult.of(reasons)


def _structure(model: ir.Model, mask: ir.Value, samples: Samples) -> Structure | Refusal:
    """What a mask [B, H, T, S] is for all ``samples``, the longest last, or why that is not known."""
    subgraph = Subgraph(model, [mask])
    if not subgraph.is_standard:
        return _NO_STRUCTURE
    # keys are masked for every row of the batch
    fitting: list[Structure] = ["causal", "causal keys", "keys"]
    if mask.shape is not None and mask.shape[0] == 1:
        fitting = ["causal"]
    longest = 0
    for values in subgraph.for_samples(samples):
        if values is None:
            return _NO_STRUCTURE
        (value,) = values
        longest = max(longest, min(value.shape[2:]))
        fitting = [structure for structure in fitting if _is(structure, value)]
        if not fitting:
            return _NO_STRUCTURE
    if fitting[0] == "causal" and subgraph.reads_inputs:
        return Refusal("its mask reads an input, and was causality alone for all that were looked at")
    if may_differ_beyond(subgraph.model.graph, longest):
        return Refusal(f"its mask has a number or a table beyond the {longest} tokens that were looked at")
    return fitting[0]


def may_differ_beyond(graph: ir.Graph, longest: int) -> bool:
    """Whether something in ``graph`` may end or begin at more than ``longest`` tokens."""
    return bool(numbers_beyond(graph, longest)) or has_table_beyond(graph, longest)


def numbers_beyond(graph: ir.Graph, longest: int) -> list[int]:
    """The numbers in ``graph``, without their signs, that may be lengths of ``longest`` tokens or more."""
    lengths = [np.abs(array[array != DROPPED_DISTANCE]) for array in _constants(graph)]
    return sorted({int(x) for array in lengths for x in array[(longest <= array) & (array < _NO_LENGTH)]})


def has_table_beyond(graph: ir.Graph, longest: int) -> bool:
    """Whether a constant of ``graph`` has more than ``longest`` rows."""
    return any(size > longest for array in _constants(graph) for size in array.shape)


def _constants(graph: ir.Graph) -> list[Array]:
    constants = [value.const_value for value in graph.initializers.values()]
    constants += [node.attributes["value"].as_tensor() for node in graph if "value" in node.attributes]
    return [np.asarray(tensor.numpy()) for tensor in constants if tensor is not None]


def _is(structure: Structure, mask: Array) -> bool:
    dropped = drops(mask)
    later = np.arange(mask.shape[3]) > np.arange(mask.shape[2])[:, None]
    if structure == "causal":
        return bool(((mask == 0) & ~dropped | later).all() and dropped[..., later].all())
    keys = mask[:, :1, -1:]
    if structure == "keys":
        return bool((mask == keys).all())
    square = mask.shape[2] == mask.shape[3]
    return bool(square and ((mask == keys) | later).all() and dropped[..., later].all())


def _change(node: ir.Node, spec: AttentionSpec, mask: ir.Value, structure: Structure) -> None:
    causal = structure != "keys"
    changed = replace(spec, mask="none" if structure == "causal" else "keys", causal=causal)
    inputs = spec.named_inputs(node)
    if "keys" in structure:
        # what the last query sees is all that padding leaves
        shape = sizes(mask)
        assert shape is not None  # `apply` leaves masks of unknown rank
        inputs["mask"] = Builder.at(node).op(
            "Slice", mask, [0, -1], [1, _END], [1, 2], shape=[shape[0], 1, 1, shape[3]]
        )
    if causal and not spec.ordered:
        inputs |= {at: counted(x, node) for at, x in (("qpos", inputs["q"]), ("kpos", inputs["k"])) if x is not None}
    take_place(changed.node(inputs, like=node), node)

"""Attention of a user's module: what was recognised in the trace and in the graph, and why some was not."""

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from posexport.passes import attention_by_hand, mask_structure
from posexport.passes.graph_pass import PassResult
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.sources.user_module import UserModule
from posexport.spec import BATCH

#: the longest input that masks are looked at for, where the module has no limit below it
_LONGEST = 1024


def run(model: ir.Model, source: Source) -> dict[str, PassResult]:
    """Recognise what is left in the traced graph of a user's module; entries for the manifest's passes."""
    parts = [part for part in source.module.modules() if isinstance(part, UserModule)]
    if not parts:
        return {}
    called = PassResult.of([reason for part in parts for reason in part.attentions])
    by_hand = attention_by_hand.recognise(model)
    _settle(model, by_hand)
    structured = mask_structure.simplify(model, _samples(source))
    _settle(model, structured)
    recognised = PassResult(called.nodes + by_hand.nodes, (*called.rejected, *by_hand.rejected))
    return {"recognised-attention": recognised, "mask-structure": structured}


def _settle(model: ir.Model, result: PassResult) -> None:
    """What layers share once, where a pass wrote it for each."""
    if result.nodes:
        CommonSubexpressionEliminationPass()(model)
        RemoveUnusedNodesPass()(model)


def _samples(source: Source) -> list[Mapping[str, NDArray[Any]]]:
    """Inputs of several sizes, a short row and a long one padded on either side."""
    longest = min(source.limits.max_length or _LONGEST, _LONGEST)
    names = [name for name in axis_sizes(source.inputs) if name != BATCH]
    samples: list[Mapping[str, NDArray[Any]]] = []
    for batch, length in ((3, min(7, longest)), (2, min(33, longest)), (1, longest)):
        sizes = {BATCH: batch} | {name: max(1, length - at) for at, name in enumerate(names)}
        drawn = example(source.inputs, sizes)
        feeds: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in drawn.items()}
        for spec in source.inputs:
            if spec.role == "mask" and batch > 1:
                _pad(feeds[spec.name])
        samples.append(feeds)
    return samples


def _pad(mask: NDArray[Any]) -> None:
    """Drop the first third of the first row's tokens, and the last third of the last one's."""
    third = mask.shape[-1] // 3
    mask[0, ..., :third] = 0
    mask[-1, ..., mask.shape[-1] - third :] = 0

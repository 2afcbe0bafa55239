"""Which of the axes that vary is the batch: its rows do not see one another."""

from collections.abc import Mapping

import torch
from torch import Tensor

from posexport.modules.axes.classify import Classified, Varying
from posexport.modules.axes.example_calls import ExampleCalls, resized

#: what rounding may change, of the largest element
_ROUNDING = 1e-4


def separate(calls: ExampleCalls, found: Classified, group: Varying, masks: set[str]) -> bool:
    """Whether other values in the first row of ``group`` leave the outputs of all other rows as they were.

    The first, not the last: what is causal does not look ahead.
    """
    tensors = {name: resized(tensor, found.base[name]) for name, tensor in calls.tensors.items()}
    changed = {name: _changed(tensor, name, group) if name not in masks else tensor for name, tensor in tensors.items()}
    outputs = calls.run(changed)
    return outputs is not None and all(
        _rest_is_same(found.outputs[name], outputs, name, group) for name in found.outputs
    )


def _changed(tensor: Tensor, name: str, group: Varying) -> Tensor:
    for axis in (axis for other, axis in group.members if other == name):
        first = tensor.select(axis, 0)
        if tensor.is_floating_point():
            new = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)
        else:
            new = tensor.max() - first
        tensor = tensor.clone()
        tensor.select(axis, 0).copy_(new)
    return tensor


def _rest_is_same(before: Tensor, outputs: Mapping[str, Tensor], name: str, group: Varying) -> bool:
    after = outputs.get(name)
    if after is None or after.shape != before.shape:
        return False
    limit = _ROUNDING * float(before.double().abs().max())
    axes = [axis for output, axis in group.outputs if output == name]
    rest = [(t.narrow(axes[0], 1, t.shape[axes[0]] - 1) if axes else t).double() for t in (before, after)]
    return bool((rest[0] - rest[1]).abs().max() <= limit) if rest[0].numel() else True

"""Modules that take integers of one type alone, as frames of a video in uint8: inputs of a graph are int64.

``assert frames.dtype == torch.uint8`` refuses int64; a hook casts what the module is called with.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.call import CallError, call

_NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


def with_example_types(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The example with integers in int64, which ``module`` casts from now on where it would refuse them."""
    narrow = {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype in _NARROW}
    wide = {name: tensor.long() if name in narrow else tensor for name, tensor in tensors.items()}
    if not narrow or _accepts(module, wide) or not _accepts(module, tensors):
        return dict(tensors)
    module.register_forward_pre_hook(partial(_cast, narrow), with_kwargs=True)
    return wide


def _accepts(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    try:
        call(module, tensors)
    except (CallError, PosexportError):
        return False
    return True


def _cast(
    dtypes: Mapping[str, torch.dtype], _: nn.Module, args: Any, named: dict[str, Tensor]
) -> tuple[Any, dict[str, Tensor]]:
    for name, dtype in dtypes.items():
        limits = torch.iinfo(dtype)
        # a trace knows no values; its graph's are checked against those that calls show to be taken
        if not torch.compiler.is_compiling() and not torch.equal(named[name], named[name].to(dtype).long()):
            raise ValueError(f"{name} must be from {limits.min} to {limits.max}")
    return args, {name: tensor.to(dtypes[name]) if name in dtypes else tensor for name, tensor in named.items()}

"""A module in another precision, with complex buffers that stay complex.

``nn.Module.to(dtype)`` casts complex tensors to a real ``dtype`` as well, and drops the imaginary part with a warning
alone: tables of rotations by ``torch.polar`` become cosines.

Issue: pytorch/pytorch 95337 (open). Seen in 2.13.
"""

import torch
from torch import nn


def in_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """``module``, changed in place to ``dtype``; complex tensors stay complex, with as many bits.

    Parameters that a submodule names in ``position_parameters`` are never narrower than float32: angles are made of
    them.
    """
    # read before the cast what it would round or make real
    exact = {
        (submodule, name): getattr(submodule, name).detach().clone()
        for submodule in module.modules()
        for name in getattr(submodule, "position_parameters", ())
        if dtype.itemsize < torch.float32.itemsize
    }
    complex_buffers = {
        (submodule, name): value
        for submodule in module.modules()
        for name, value in submodule.named_buffers(recurse=False)
        if value.is_complex()
    }
    for submodule, name in complex_buffers:
        del submodule._buffers[name]  # noqa: SLF001 (as nn.Module.to would set it)
    module = module.to(dtype)
    # put it back
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    for (submodule, name), value in complex_buffers.items():
        submodule._buffers[name] = value.to(wide)  # noqa: SLF001
    for (submodule, name), value in exact.items():
        setattr(submodule, name, nn.Parameter(value, requires_grad=False))
    return module

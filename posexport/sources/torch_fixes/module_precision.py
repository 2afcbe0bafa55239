"""A module in another precision, with complex parameters and buffers that stay complex.

``nn.Module.to(dtype)`` casts complex tensors to a real ``dtype`` as well, and drops the imaginary part with a warning
alone: tables of rotations by ``torch.polar`` become cosines.

Issue: pytorch/pytorch 95337 (open). Seen in 2.13.
"""

from typing import Any

import torch
from torch import Tensor, nn


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
    complex_tensors: list[tuple[dict[str, Any], str, Tensor]] = [
        (held, name, value)
        for submodule in module.modules()
        for held in (submodule._buffers, submodule._parameters)  # noqa: SLF001 (as nn.Module.to would set them)
        for name, value in held.items()
        if value is not None and value.is_complex()
    ]
    for held, name, _ in complex_tensors:
        del held[name]
    module = module.to(dtype)
    # put it back
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    for held, name, value in complex_tensors:
        changed = value.detach().to(wide)
        held[name] = nn.Parameter(changed, requires_grad=False) if isinstance(value, nn.Parameter) else changed
    for (submodule, name), value in exact.items():
        setattr(submodule, name, nn.Parameter(value, requires_grad=False))
    return module

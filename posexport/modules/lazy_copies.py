"""Copies of parameters that take no memory until they, or what they were copied from, are written to.

A conversion makes half a dozen copies of a module, of which almost none is changed.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from posexport.sources import memory_mapped


def share_until_written(module: nn.Module, memo: dict[int, Any]) -> None:
    """Put copies of the large parameters of ``module`` into ``memo``, for ``copy.deepcopy``."""
    for parameter in module.parameters():
        plain = type(parameter) is nn.Parameter and parameter.layout == torch.strided
        if not plain or parameter.nbytes < memory_mapped.LEAST or id(parameter) in memo:
            continue
        with suppress(RuntimeError):  # pages of a file, and what NumPy or another device has allocated
            copy = torch._lazy_clone(parameter.detach())  # noqa: SLF001 (it has no public name)
            memo[id(parameter)] = nn.Parameter(copy, parameter.requires_grad)

"""Parameters that a module sets in its first call, by the values of its inputs: thresholds of trees, scales of a flow.

A bundle would have those of inputs that were drawn.
"""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from posexport.errors import PosexportError


def check_parameters(argument: str, before: nn.Module, after: nn.Module) -> None:
    """PosexportError where a parameter of ``after``, a copy of ``before`` that was called, has other values."""
    values = dict(after.named_parameters())
    for name, parameter in before.named_parameters():
        if name in values and not is_lazy(parameter) and not _same(parameter.detach(), values[name].detach()):
            raise PosexportError(
                f"{argument}: the module sets its parameter {name} in its first call, by the values of its inputs; "
                "call it once with data of yours before it is converted, as before it is used"
            )


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype or torch.equal(one, two):
        return one.shape == two.shape  # another dtype is a cast
    return torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num())

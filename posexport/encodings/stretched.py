"""``--beyond interpolate``: a table with one row per position, for more positions."""

import torch.nn.functional as F
from torch import nn


def stretched(table: nn.Parameter, rows: int, *, kept: int) -> nn.Parameter:
    """``table`` [M, C] stretched linearly to ``kept + rows`` rows; the first ``kept`` stay as they are.

    The first and last of the others are kept as well. Computed in float64, rounded once.
    """
    old = table.detach()
    old_1CM = old[kept:].double().mT[None]
    new_MC = F.interpolate(old_1CM, size=rows, mode="linear", align_corners=True)[0].mT
    found = nn.Parameter(old.new_empty(kept + rows, old.shape[1]), requires_grad=table.requires_grad)
    found.data[:kept] = old[:kept]
    found.data[kept:] = new_MC
    return found

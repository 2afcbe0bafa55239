"""The distances that occur between a call's queries and keys."""

import torch
from torch import Tensor

from posexport.encodings.positions import Positions


def distances(queries: Positions, keys: Positions) -> tuple[Tensor, Tensor]:
    """The lowest distance (query minus key), int64 [1], and all T + S - 1 of them from it up, int64 [W]."""
    # picked, not sliced: of a slice the tracer cannot tell that it has one element
    lowest_1 = (queries.slots_T[0] - keys.slots_T[-1]).reshape(1)
    count = queries.slots_T.shape[0] + keys.slots_T.shape[0] - 1
    return lowest_1, lowest_1 + torch.arange(count, device=lowest_1.device)

"""Position-id schemes: which position every token of a model has."""

from typing import Protocol

import torch
from torch import Tensor

from posexport.encodings.positions import Positions


class PositionIds(Protocol):
    """Positions of token ids. ``offset``: the first token's; rows of a table before it are no real token's."""

    offset: int

    def __call__(self, ids_BT: Tensor) -> Positions:
        """The positions of int64 token ids [B, T]."""
        ...


class SequentialPositionIds:
    """0, 1, 2 ... whatever the tokens are (BERT)."""

    offset = 0

    def __call__(self, ids_BT: Tensor) -> Positions:
        return Positions.counted(ids_BT.shape[1], ids_BT.device)


class FairseqPositionIds:
    """``padding_id + 1, + 2 ...``, counting all but padding tokens, which themselves get ``padding_id``.

    RoBERTa and its heirs; fairseq's ``make_positions``. The token ids decide, not the mask.
    """

    def __init__(self, padding_id: int) -> None:
        self.padding_id = padding_id
        self.offset = padding_id + 1

    def __call__(self, ids_BT: Tensor) -> Positions:
        real_BT = (ids_BT != self.padding_id).to(torch.int64)
        slots_T = torch.arange(ids_BT.shape[1], dtype=torch.int64, device=ids_BT.device)
        return Positions(ids_BT=real_BT.cumsum(1) * real_BT + self.padding_id, slots_T=slots_T)

"""Decoder with three positions per token (M-RoPE, Qwen2-VL, arXiv:2409.12191).

Shape letters: B batch, T new tokens, S past and new tokens.
"""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from posexport.encodings.positions import Positions
from posexport.models.cached_decoder import Decoding
from posexport.nn.caching import Reach
from posexport.through.decoder import EmbedsDecoder

#: frame, row and column: the components of a position
AXES = 3


class MRopeDecoder(EmbedsDecoder):
    """Decoder with ``position_ids`` [3, B, T], which only rotate queries and keys.

    Causality follows the order of the tokens and the mask, as in transformers. A negative position is replaced by the
    index of the token, which is right for text.
    """

    @property
    def decoding(self) -> Decoding:
        decoding = super().decoding
        assert decoding.position_ids is not None
        axes = [AXES, *decoding.position_ids.axes]
        return replace(decoding, position_ids=msgspec.structs.replace(decoding.position_ids, axes=axes))

    def reach(self, mask_BS: Tensor, new: int, positions: Tensor | None) -> Reach:
        return Reach.by_mask(mask_BS, new, self.caching)

    def numbered(self, at: Reach, positions: Tensor | None) -> Reach:
        ids_BT = at.queries.ids_BT
        positions_3BT = torch.full_like(ids_BT, -1)[None].expand(AXES, -1, -1) if positions is None else positions
        resolved_3BT = torch.where(positions_3BT < 0, ids_BT, positions_3BT)
        return replace(at, queries=Positions(resolved_3BT, at.queries.slots_T))

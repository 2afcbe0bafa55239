"""A decoder of transformers whose tokens have three positions each (M-RoPE): Qwen's of images and text.

Shape letters: B batch, T new tokens, S past and new tokens.
"""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from posexport.definition.cached_decoder import Decoding
from posexport.encodings.positions import Positions
from posexport.nn.reach import Reach
from posexport.through.decoder import EmbedsDecoder

#: frame, row and column
AXES = 3


class MRopeDecoder(EmbedsDecoder):
    """Positions [3, B, T] rotate queries and keys; who attends to whom is told by the mask alone, as in transformers.

    Negative ones are all three the token's number, as those of text are.
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
        given_3BT = torch.full_like(ids_BT, -1)[None].expand(AXES, -1, -1) if positions is None else positions
        own_3BT = torch.where(given_3BT < 0, ids_BT, given_3BT)
        return replace(at, queries=Positions(own_3BT, at.queries.slots_T))

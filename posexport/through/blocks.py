"""Decoder with bidirectional attention among the tokens of an image: Gemma 3's and Gemma 4's.

Shape letters: B batch, T new tokens.
"""

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.nn.cached_call import CachedCall, cached_call
from posexport.through.decoder import EmbedsDecoder, more_inputs
from posexport.through.inputs import TYPES
from posexport.through.planned_call import PlannedCall

#: the tokens of images
BLOCKS = InputSpec(name=TYPES, dtype="int64", axes=[BATCH, SEQUENCE], role="blocks")


class BlocksDecoder(EmbedsDecoder):
    """Decoder that also reads ``token_type_ids``: 1 at image tokens and 0 elsewhere.

    The tokens of an image are adjacent, and all of them are in one call.
    """

    #: only layers with a sliding window have attention among the tokens of an image
    windows_alone = False

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        types_BT = more_inputs().get(TYPES)
        return cached_call(
            PlannedCall(
                call.at,
                call.mask_BS,
                call.past,
                present=call.present,
                plan=self.layers,
                blocks_BT=None if types_BT is None else _image_indices(types_BT),
                windows_alone=self.windows_alone,
            )
        )


def _image_indices(types_BT: Tensor) -> Tensor:
    """The index of every token's image in its row, -1 for text, [B, T]."""
    inside_BT = (types_BT == 1).to(torch.int64)
    starts_BT = (inside_BT - F.pad(inside_BT, (1, 0))[:, :-1]).clamp(min=0)
    return torch.where(inside_BT == 1, starts_BT.cumsum(1) - 1, -1)

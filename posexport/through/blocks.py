"""Decoder with bidirectional attention among the tokens of an image: Gemma 3's.

Shape letters: B batch, T new tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.nn.cached_call import CachedCall, cached_call
from posexport.spec import BATCH, SEQUENCE, InputSpec
from posexport.through.attention import PlannedCall
from posexport.through.decoder import EmbedsDecoder
from posexport.through.inputs import TYPES

_TYPES: ContextVar[Tensor | None] = ContextVar("posexport_image_tokens", default=None)


class BlocksDecoder(EmbedsDecoder):
    """Decoder that also reads ``token_type_ids``: 1 at image tokens and 0 elsewhere.

    The tokens of an image are adjacent, and all of them are in one call.
    """

    @property
    def inputs(self) -> list[InputSpec]:
        return [*super().inputs, InputSpec(name=TYPES, dtype="int64", axes=[BATCH, SEQUENCE], role="blocks")]

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        types_BT = _TYPES.get()
        blocks_BT = None if types_BT is None else _image_indices(types_BT)
        return cached_call(
            PlannedCall(call.at, call.mask_BS, call.past, present=call.present, plan=self.layers, blocks_BT=blocks_BT)
        )

    def forward(  # type: ignore[override]  # named inputs
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        with _token_types(token_type_ids):
            return super().forward(inputs_embeds, attention_mask, past_key_values, position_ids, **named)


@contextmanager
def _token_types(types_BT: Tensor | None) -> Iterator[None]:
    """Make `BlocksDecoder.calling` read these token types inside the block."""
    token = _TYPES.set(types_BT)
    try:
        yield
    finally:
        _TYPES.reset(token)


def _image_indices(types_BT: Tensor) -> Tensor:
    """The index of every token's image in its row, -1 for text, [B, T]."""
    inside_BT = (types_BT == 1).to(torch.int64)
    starts_BT = (inside_BT - F.pad(inside_BT, (1, 0))[:, :-1]).clamp(min=0)
    return torch.where(inside_BT == 1, starts_BT.cumsum(1) - 1, -1)

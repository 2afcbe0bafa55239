"""A decoder of transformers in which the tokens of an image attend to one another, later ones too: Gemma 3's.

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
from posexport.through.wrapped import TYPES

_TYPES: ContextVar[Tensor | None] = ContextVar("posexport_image_tokens", default=None)


class BlocksDecoder(EmbedsDecoder):
    """``token_type_ids``: 1 at tokens of an image, which are next to one another and in one call; 0 at all others."""

    @property
    def inputs(self) -> list[InputSpec]:
        return [*super().inputs, InputSpec(name=TYPES, dtype="int64", axes=[BATCH, SEQUENCE], role="blocks")]

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        types_BT = _TYPES.get()
        blocks_BT = None if types_BT is None else _numbers(types_BT)
        return cached_call(
            PlannedCall(call.at, call.mask_BS, call.past, present=call.present, plan=self.layers, blocks_BT=blocks_BT)
        )

    def forward(  # type: ignore[override]  # by the names of its own inputs
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        with _images(token_type_ids):
            return super().forward(inputs_embeds, attention_mask, past_key_values, position_ids, **named)


@contextmanager
def _images(types_BT: Tensor | None) -> Iterator[None]:
    """Inside the block, calls read tokens of these types."""
    token = _TYPES.set(types_BT)
    try:
        yield
    finally:
        _TYPES.reset(token)


def _numbers(types_BT: Tensor) -> Tensor:
    """The number of every token's image in its row; -1 at text."""
    inside_BT = (types_BT == 1).to(torch.int64)
    starts_BT = (inside_BT - F.pad(inside_BT, (1, 0))[:, :-1]).clamp(min=0)
    return torch.where(inside_BT == 1, starts_BT.cumsum(1) - 1, -1)

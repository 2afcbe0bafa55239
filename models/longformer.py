"""Longformer: every token attends to a window around it, a few marked tokens to all and all to them.

Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer" (arXiv:2004.05150), sections 3.1 (sliding window,
global attention, separate projections for it); details follow the released weights as transformers reads
them. The window may differ from layer to layer. Positions are the encoding's, which acts on the input alone; the
window itself is no encoding but the model's, and does not encode the relative position of a token in it.

Time and memory grow with length times (window + marked tokens): queries go in blocks, and the keys of a block are the
band around it and the marked tokens, each key once. How many tokens are marked is data; the graph computes it (one
size in it depends on values). Nothing is padded to a multiple of the window, so that no length is special.

Not done: dilated windows, causal windows (the model for generation), leaving the projections for marked tokens out
where none is marked.

Shape letters: B batch, T tokens, N blocks, Q tokens of a block, K keys of a block, G marked tokens (of the row that has
most of them), H heads, D head size, C model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.definition import HeadedModel, limits_of, text_inputs
from posexport.models.embeddings import Embeddings
from posexport.models.encoder import EncoderConfig
from posexport.models.layer import Layer
from posexport.nn.attention import additive, attend
from posexport.nn.blocks import inside, join, smaller, starts, take
from posexport.nn.heads import Head
from posexport.nn.position_ids import FairseqPositionIds
from posexport.nn.projections import Projections, merge_heads, split_heads

#: Queries per block. Of 64, 128 and 256 the fastest at 4096 tokens and a window of 512 (ONNX Runtime, CPU).
BLOCK = 64
#: Global attention tokens of a row without any in the mask: none, its first one, or those before its first separator.
Default = Literal["none", "first", "question"]


@dataclass(frozen=True)
class Marked:
    """The tokens that attend to all and that all attend to.

    ``token_BT``: the mask of them; ``slot_BG``: their slots, in order; ``there_BG``: the mask of used slots, as
    rows may have different numbers; ``rank_BT``: a token's index among the marked tokens of its row (0 elsewhere).
    """

    token_BT: Tensor
    slot_BG: Tensor
    there_BG: Tensor
    rank_BT: Tensor


@dataclass(frozen=True)
class Band:
    """The slots of a block's queries and of the keys around them, and the additive mask of keys that a query sees."""

    query_NQ: Tensor
    key_NK: Tensor
    mask_BN1QK: Tensor


def marked(token_BT: Tensor) -> Marked:
    """List the marked tokens. At least one slot a row, so that no size is 0."""
    count_BT = token_BT.cumsum(1)
    most = cast(int, count_BT[:, -1].max().clamp(min=1).item())
    torch._check(most >= 1)  # type: ignore[no-untyped-call]  # noqa: SLF001 (for the trace, which knows no more of it)
    rank_G = torch.arange(most, device=token_BT.device)
    # the slot of marked token g is the first where the count reaches g + 1
    slot_BG = (count_BT[:, None, :] <= rank_G[:, None]).sum(2).clamp(max=token_BT.shape[1] - 1)
    return Marked(token_BT, slot_BG, rank_G < count_BT[:, -1:], (count_BT - 1).clamp(min=0))


def band(side: int, real_BT: Tensor, chosen: Marked, like: Tensor) -> Band:
    """Windows of ``side`` tokens to either side, without padding and without marked tokens, and then these."""
    length, device = real_BT.shape[1], real_BT.device
    # a short input needs neither a whole block nor a whole window
    size, reach = smaller(length, BLOCK), smaller(length - 1, side)
    start_N1 = starts(length, size, device)[:, None]
    query_Q = torch.arange(size, device=device)
    key_K = torch.arange(size + 2 * reach, device=device) - reach
    slots_NK = start_N1 + key_K
    near_QK = (key_K - query_Q[:, None]).abs() <= side
    local_BNK = take((real_BT & ~chosen.token_BT)[:, :, None], slots_NK)[..., 0] & inside(slots_NK, length)
    seen_BNQK = local_BNK[:, :, None, :] & near_QK
    all_BNQG = chosen.there_BG[:, None, None, :].expand(*seen_BNQK.shape[:3], -1)
    seen_BN1QK = torch.cat([seen_BNQK, all_BNQG], -1)[:, :, None]
    zero, lowest = (like.new_full((), value) for value in (0.0, torch.finfo(like.dtype).min))
    return Band(start_N1 + query_Q, slots_NK, torch.where(seen_BN1QK, zero, lowest))


class WindowAttention(Projections):
    """Attention of every token to its window and to the marked tokens, and of these to every token."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__(hidden, heads, hidden // heads)
        self.scale = (hidden // heads) ** -0.5
        self.query_global = nn.Linear(hidden, hidden)
        self.key_global = nn.Linear(hidden, hidden)
        self.value_global = nn.Linear(hidden, hidden)

    def forward(self, x_BTC: Tensor, real_BT: Tensor, near: Band, chosen: Marked) -> Tensor:
        from_all_BTC = _rows(self._of_marked(x_BTC, real_BT, chosen), chosen.rank_BT)
        context_BTC = torch.where(chosen.token_BT[:, :, None], from_all_BTC, self._of_window(x_BTC, near, chosen))
        # padding attends to nothing: not even to a marked token that it would see
        context_BTC = torch.where(real_BT[:, :, None], context_BTC, torch.zeros_like(context_BTC[:1, :1, :1]))
        out: Tensor = self.output(context_BTC)
        return out

    def _of_window(self, x_BTC: Tensor, near: Band, chosen: Marked) -> Tensor:
        def keys(y_BTC: Tensor) -> Tensor:
            around_BNHKD = split_heads(take(y_BTC, near.key_NK), self.heads)
            marked_BHGD = split_heads(_rows(y_BTC, chosen.slot_BG), self.heads)
            blocks = around_BNHKD.shape[1]
            return torch.cat([around_BNHKD, marked_BHGD[:, None].expand(-1, blocks, -1, -1, -1)], 3)

        context_BNHQD = attend(
            split_heads(take(self.query(x_BTC), near.query_NQ), self.heads),
            keys(self.key(x_BTC)),
            keys(self.value(x_BTC)),
            scale=self.scale,
            mask=near.mask_BN1QK,
        )
        return join(merge_heads(context_BNHQD), x_BTC.shape[1])

    def _of_marked(self, x_BTC: Tensor, real_BT: Tensor, chosen: Marked) -> Tensor:
        context_BHGD = attend(
            split_heads(self.query_global(_rows(x_BTC, chosen.slot_BG)), self.heads),
            split_heads(self.key_global(x_BTC), self.heads),
            split_heads(self.value_global(x_BTC), self.heads),
            scale=self.scale,
            mask=additive(real_BT, x_BTC),
        )
        return merge_heads(context_BHGD)


class Longformer(nn.Module):
    """Embeddings and layers; ``windows``: an even number for each layer, the tokens in its window besides the query.

    Raises PosexportError for an encoding that acts inside attention and for windows that do not fit.
    """

    def __init__(self, config: EncoderConfig, encoding: Encoding, windows: Sequence[int]) -> None:
        super().__init__()
        if encoding.attention_hooks:
            raise PosexportError(f"a Longformer needs an encoding of its input, got {encoding.name}: it acts on scores")
        if len(windows) != config.layers:
            raise PosexportError(f"a Longformer needs a window for each of {config.layers} layers, got {len(windows)}")
        if wrong := [window for window in windows if window < 2 or window % 2]:
            raise PosexportError(f"a Longformer's window must be an even number from 2 on, got {wrong[0]}")
        self.config = config
        self.sides = [window // 2 for window in windows]
        self.embeddings = Embeddings(
            config.embedding, config.layer.norm, config.hidden, encoding, FairseqPositionIds(config.padding_id)
        )
        self.layers = nn.ModuleList(Layer(config.layer, WindowAttention(config.hidden, config.heads)) for _ in windows)

    def forward(self, ids_BT: Tensor, real_BT: Tensor, types_BT: Tensor | None, token_BT: Tensor) -> Tensor:
        """``real_BT``: bool, false for padding. ``token_BT``: bool, global attention tokens."""
        x_BTC: Tensor
        x_BTC, _ = self.embeddings(ids_BT, types_BT)
        chosen = marked(token_BT)
        bands = {side: band(side, real_BT, chosen, x_BTC) for side in sorted(set(self.sides))}
        for layer, side in zip(self.layers, self.sides, strict=True):
            x_BTC = layer(x_BTC, real_BT, bands[side], chosen)
        return x_BTC


class LongformerModel(HeadedModel):
    """A Longformer with a head.

    ``default``: the global attention tokens of a row without any in its mask. transformers marks the first
    token for classification, the question for question answering, if the call has no mask; a graph cannot tell a
    missing mask from one of zeros, so here zeros mean the default.
    """

    encoder: Longformer

    def __init__(self, encoder: Longformer, head: Head, *, default: Default = "none", separator: int = 2) -> None:
        super().__init__(encoder, head)
        self.default = default
        self.separator = separator
        self.overhead = encoder.embeddings.position_ids.offset

    @property
    def encoding(self) -> Encoding:
        encoding = self.encoder.embeddings.encoding
        assert encoding is not None
        return encoding

    @property
    def limits(self) -> LengthContract:
        """The encoding's, with the lengths beyond which a window no longer holds all tokens, and of blocks."""
        limits = limits_of(self.encoding, self.encoder.embeddings.position_ids)
        limit = limits.max_length
        ours = {*(side + 1 for side in self.encoder.sides), BLOCK, 2 * BLOCK}
        inner = {length for length in ours if limit is None or length < limit}
        return msgspec.structs.replace(limits, boundaries=sorted({*limits.boundaries, *inner}))

    @property
    def inputs(self) -> list[InputSpec]:
        config = self.encoder.config
        marks = InputSpec(
            name="global_attention_mask", dtype="int64", axes=[BATCH, SEQUENCE], role="flags", size=2, default=0
        )
        return [*text_inputs(config.vocab, config.padding_id, config.embedding.types), marks]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        flags_BT = torch.zeros_like(input_ids) if global_attention_mask is None else global_attention_mask
        real_BT = mask_BT != 0
        token_BT = (flags_BT != 0) & real_BT
        if self.default != "none":
            none_B1 = token_BT.sum(1, keepdim=True) == 0
            token_BT = token_BT | (none_B1 & self._default(input_ids, real_BT))
        x_BTC = self.encoder(input_ids, real_BT, token_type_ids, token_BT)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, mask_BT)
        return outputs

    def _default(self, ids_BT: Tensor, real_BT: Tensor) -> Tensor:
        if self.default == "first":
            return (torch.arange(ids_BT.shape[1], device=ids_BT.device) == 0) & real_BT
        # a row without a separator has no question
        seen_BT = ((ids_BT == self.separator) & real_BT).cumsum(1)
        return (seen_BT == 0) & (seen_BT[:, -1:] > 0) & real_BT


def _rows(x_BSC: Tensor, slots_BG: Tensor) -> Tensor:
    """[B, G, C]: from every row of the batch the vectors at that row's slots."""
    offset_B1 = torch.arange(x_BSC.shape[0], device=x_BSC.device)[:, None] * x_BSC.shape[1]
    return F.embedding(slots_BG + offset_B1, x_BSC.flatten(0, 1))

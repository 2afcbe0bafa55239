"""Canine: a model of characters; its deep layers see one vector for every few of them.

Clark, Garrette, Turc, Wieting, "CANINE" (arXiv:2103.06874), section 3; details follow the released weights
as transformers reads them. A character's embedding is a few hashes of its code point, each looked up in a separate
table, so that all of Unicode has one. One layer attends within blocks of characters; a strided convolution makes
"molecules" of them, which the deep layers work on; these are repeated, joined with the characters and mixed by a
convolution, and one layer over all characters ends it.

As released, and kept here: the last molecule is dropped for the first character's vector, so that all others are
one slot later than their mask, and the characters left over at the end read the last one. So **padding changes real
tokens** by definition, on either side: on the right the last molecule takes part that alone is dropped, and the
characters near the edge are mixed with padding, content and all (the deep layers never see that content); on the left
blocks and molecules begin elsewhere. A block of only padding attends to all of itself uniformly.

Not done: decoding of pre-training (by subwords or autoregressively), relative positions.

Shape letters: B batch, T characters, M molecules, N blocks, Q characters of a block, H heads, D head size, C model
size.
"""

from dataclasses import dataclass, field

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.definition import HeadedModel, limits_of, text_inputs
from posexport.models.layer import EncoderLayer, Layer, LayerConfig
from posexport.nn.attention import additive
from posexport.nn.blocks import inside, join, smaller, starts, take
from posexport.nn.config import Config
from posexport.nn.feed_forward import activation
from posexport.nn.heads import Head
from posexport.nn.projections import Projections, merge_heads, split_heads

#: of the hashes: code point plus one, times the prime, modulo the number of buckets (released code)
PRIMES = (31, 43, 59, 61, 73, 97, 103, 113, 137, 149, 157, 173, 181, 193, 211, 223)
#: how many code points Unicode has
UNICODE = 0x110000


@dataclass(frozen=True, kw_only=True)
class CanineConfig(Config):
    """Sizes. ``layers`` are the deep ones; ``stride``: characters of a block; ``rate``: characters of a molecule."""

    layer: LayerConfig = field(default_factory=LayerConfig)
    layers: Size = 2
    vocab: int = UNICODE
    padding_id: int = 0
    types: int = 16
    hashes: int = 4
    buckets: Size = 16384
    stride: Size = 128
    rate: Size = 4
    #: characters that the convolution back to characters reads in one window
    kernel: Size = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.hashes <= len(PRIMES) or self.hidden % self.hashes:
            raise PosexportError(
                f"hashes must divide hidden={self.hidden} and be from 1 to {len(PRIMES)}, got {self.hashes}"
            )

    @property
    def hidden(self) -> int:
        return self.layer.hidden


class CharacterEmbeddings(nn.Module):
    """Hashed code points, types and positions, normalised."""

    def __init__(self, config: CanineConfig, encoding: Encoding) -> None:
        super().__init__()
        width = config.hidden // config.hashes
        self.buckets = config.buckets
        self.hashed = nn.ModuleList(nn.Embedding(config.buckets, width) for _ in range(config.hashes))
        self.token_type = nn.Embedding(config.types, config.hidden)
        self.encoding = encoding
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer.norm.eps)

    def forward(self, ids_BT: Tensor, types_BT: Tensor | None) -> Tensor:
        parts = [
            table((ids_BT + 1) * prime % self.buckets)
            for table, prime in zip(self.hashed, PRIMES[: len(self.hashed)], strict=True)
        ]
        x_BTC = torch.cat(parts, -1)
        x_BTC = x_BTC + (self.token_type.weight[0] if types_BT is None else self.token_type(types_BT))
        out: Tensor = self.norm(self.encoding.embed(x_BTC, Positions.counted(ids_BT.shape[1], ids_BT.device)))
        return out


class BlockAttention(Projections):
    """Attention within blocks of ``stride`` characters."""

    def __init__(self, config: CanineConfig) -> None:
        size = config.layer.head_size
        super().__init__(config.hidden, config.layer.attention.heads, size)
        self.stride, self.scale = config.stride, size**-0.5

    def forward(self, x_BTC: Tensor, real_BT: Tensor) -> Tensor:
        length = x_BTC.shape[1]
        size = smaller(length, self.stride)  # a short input needs no whole block
        slots_NQ = starts(length, size, x_BTC.device)[:, None] + torch.arange(size, device=x_BTC.device)
        q_BNHQD, k_BNHQD, v_BNHQD = (
            split_heads(take(project(x_BTC), slots_NQ), self.heads) for project in (self.query, self.key, self.value)
        )
        # Two depths: the convolutions read a block that is all padding too; there, padding attends to
        # padding uniformly (adding a low value to the scores does that in float32, but not in float16), and in none to
        # what lies beyond the end.
        there_NQ = inside(slots_NQ, length)
        lowest = torch.finfo(x_BTC.dtype).min
        low, beyond = (x_BTC.new_full((), value) for value in (lowest / 2, lowest))
        instead_N1Q = torch.where(there_NQ, low, beyond)[:, None, None, :]
        real_BN11Q = (take(real_BT[:, :, None], slots_NQ)[..., 0] & there_NQ)[:, :, None, None, :]
        s_BNHQQ = torch.where(real_BN11Q, q_BNHQD @ k_BNHQD.mT * self.scale, instead_N1Q)
        out: Tensor = self.output(join(merge_heads(s_BNHQQ.softmax(-1) @ v_BNHQD), length))
        return out


class Mixing(nn.Module):
    """A convolution along the sequence, an activation, a normalisation; zeros beyond both ends if ``same`` length."""

    def __init__(self, config: CanineConfig, width: int, kernel: int, *, same: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, config.hidden, kernel, stride=1 if same else kernel)
        self.activation = activation(config.layer.feedforward.activation)
        self.norm = nn.LayerNorm(config.hidden, eps=config.layer.norm.eps)
        self.pad = ((kernel - 1) // 2, kernel // 2) if same else (0, 0)

    def mixed(self, x_BTC: Tensor) -> Tensor:
        """What `norm` is still to be applied to."""
        y_BCT = self.conv(F.pad(x_BTC.transpose(1, 2), self.pad))
        return self.activation(y_BCT.transpose(1, 2))

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.norm(self.mixed(x_BTC))
        return out


class Canine(nn.Module):
    """Characters to vectors of characters and of molecules.

    Raises PosexportError for an encoding that acts inside attention.
    """

    def __init__(self, config: CanineConfig, encoding: Encoding) -> None:
        super().__init__()
        if encoding.attention_hooks:
            raise PosexportError(f"Canine needs an encoding of its input, got {encoding.name}: it acts on scores")
        self.config = config
        self.embeddings = CharacterEmbeddings(config, encoding)
        self.first = Layer(config.layer, BlockAttention(config))
        self.down = Mixing(config, config.hidden, config.rate, same=False)
        deep = [EncoderLayer(config.layer, encoding, index) for index in range(config.layers)]
        for layer in deep:
            # real characters after the last whole molecule read molecules that are all padding
            layer.attention.of_padding = "mean"
        self.deep = nn.ModuleList(deep)
        self.up = Mixing(config, 2 * config.hidden, config.kernel, same=True)
        self.last = EncoderLayer(config.layer, encoding, config.layers)

    def forward(self, ids_BT: Tensor, real_BT: Tensor, types_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """The characters' vectors [B, T, C] and the molecules' [B, M, C]; ``real_BT``: bool, false for padding."""
        chars_BTC = self.first(self.embeddings(ids_BT, types_BT), real_BT)
        molecules_BMC = self._molecules(chars_BTC)
        count, rate = molecules_BMC.shape[1], self.config.rate
        slot_M = torch.arange(count, device=ids_BT.device)
        mask_B11M = additive(self._any(real_BT, slot_M), chars_BTC)
        positions = Positions.counted(count, ids_BT.device)
        for layer in self.deep:
            molecules_BMC = layer(molecules_BMC, mask_B11M, positions, None)
        # molecule m covers the characters from (m - 1) rate; those at the end read the last one
        at_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        of_T = (at_T // rate + 1).minimum(slot_M[-1:])
        joined = torch.cat([chars_BTC, molecules_BMC.index_select(1, of_T)], -1)
        x_BTC = self.last(self.up(joined), additive(real_BT, joined), Positions(at_T[None], at_T), None)
        return x_BTC, molecules_BMC

    def _molecules(self, chars_BTC: Tensor) -> Tensor:
        """The vectors of the first character and of all molecules but the last."""
        y_BMC = self.down.mixed(chars_BTC)
        slot_M = torch.arange(y_BMC.shape[1], device=y_BMC.device)
        moved_BMC = y_BMC.index_select(1, (slot_M - 1).clamp(min=0))
        out: Tensor = self.down.norm(torch.where(slot_M[:, None] == 0, chars_BTC[:, :1], moved_BMC))
        return out

    def _any(self, real_BT: Tensor, slot_M: Tensor) -> Tensor:
        """Which molecules have a real character, before they move; int64 [B, M]."""
        within = torch.arange(self.config.rate, device=real_BT.device)
        return take(real_BT[:, :, None], slot_M[:, None] * self.config.rate + within).sum((2, 3))


class CanineModel(HeadedModel):
    """A Canine with a head.

    ``pooled``: the head reads the molecules, the first for the whole text (classification); else the characters.
    """

    encoder: Canine

    def __init__(self, encoder: Canine, head: Head, *, pooled: bool) -> None:
        super().__init__(encoder, head)
        self.pooled = pooled

    @property
    def encoding(self) -> Encoding:
        return self.encoder.embeddings.encoding

    @property
    def padding_invariant(self) -> bool:
        return False

    @property
    def shift_invariant(self) -> bool:
        # blocks and molecules are counted from the start
        return False

    @property
    def limits(self) -> LengthContract:
        """From one molecule on; the lengths where the second molecule and the second and third block begin."""
        config, limits = self.encoder.config, limits_of(self.encoding)
        limit = limits.max_length
        ours = {2 * config.rate, config.stride, 2 * config.stride}
        inner = {length for length in ours if limit is None or length < limit}
        return msgspec.structs.replace(limits, min_length=config.rate, boundaries=sorted({*limits.boundaries, *inner}))

    @property
    def inputs(self) -> list[InputSpec]:
        config = self.encoder.config
        return text_inputs(config.vocab, config.padding_id, config.types)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x_BTC, molecules_BMC = self.encoder(input_ids, mask_BT != 0, token_type_ids)
        outputs: tuple[Tensor, ...] = self.head(molecules_BMC if self.pooled else x_BTC, mask_BT)
        return outputs

"""The reference of a decoder that gets its KV cache by a graph pass (`posexport.graph.passes.cache`).

The graph is compared with the author's forward, without a cache, over all tokens of each row, past and new, without
padding. The reference takes and returns past and present tensors as the graph does; they hold the ids and positions of
the tokens in place of keys and values, which is all that a forward without a cache needs.

Shape letters: B batch, T new tokens, S past and new tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec, LengthContract, OutputSpec
from posexport.encodings.encoding import Encoding
from posexport.models.cached_decoder import CachedDecoder, CacheTensors, Decoding, answer_output, mask_input
from posexport.nn.caching import Caching, KeysAndValues


@dataclass(frozen=True, kw_only=True)
class Interface:
    """How a forward is called, and the KV cache of its graph.

    Attributes:
        tokens: the ids of the graph.
        names: of forward's parameters, by the names of the graph's inputs.
        vocab: of the logits.
        returns: what the author's forward returns: the logits of every token or of the last.
        shapes: of every attention: KV heads, channels of keys and of values.
    """

    tokens: InputSpec
    names: dict[str, str]
    vocab: int
    returns: list[OutputSpec]
    shapes: Sequence[tuple[int, int, int]] = ()


#: the graph's inputs
IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
#: with fewer channels in all KV heads of a layer, ids do not fit into the reference's past
LEAST_CHANNELS = 3


class Forward(nn.Module):
    """The author's module ``user`` with the names of the graph's inputs; it is what `export.trace` traces."""

    def __init__(self, user: nn.Module, names: dict[str, str]) -> None:
        super().__init__()
        self.user, self.names = user, names

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor]:
        """Logits, [B, T, V] or of the last token alone."""
        tensors = {IDS: input_ids, MASK: attention_mask, POSITIONS: position_ids}
        logits: Tensor
        (logits,) = self.user(**{self.names[name]: x for name, x in tensors.items() if name in self.names})
        return (logits,)


class ForwardDecoder(CachedDecoder):
    """A decoder with the KV cache that a graph pass inserts.

    ``user``: its forward returns a tuple of the logits of all its tokens.
    """

    user: nn.Module

    #: how past tokens are kept; `posexport.sources.prepare` changes it
    caching: Caching = Caching()

    def __init__(
        self, user: nn.Module, interface: Interface, limits: LengthContract, encodings: Sequence[Encoding]
    ) -> None:
        super().__init__()
        self.user, self.interface = user, interface
        self._limits, self._encodings = limits, list(encodings)

    @property
    def author(self) -> nn.Module:
        """``user`` with what its forward returns: where that is logits of the last token alone, these."""
        return self.user

    @property
    def traced(self) -> Forward:
        """The author's forward, called with the bundle's names of inputs."""
        return Forward(self.author, self.interface.names)

    @property
    def traced_inputs(self) -> list[InputSpec]:
        """The inputs of `traced`: ids, mask and positions of all tokens of a call."""
        decoding, mask = self.decoding, msgspec.structs.replace(mask_input(), axes=[BATCH, SEQUENCE])
        specs = [decoding.tokens, mask, decoding.position_ids]
        return [spec for spec in specs if spec is not None and spec.name in self.interface.names]

    @property
    def encodings(self) -> list[Encoding]:
        return self._encodings

    @property
    def decoding(self) -> Decoding:
        size, interface = self._limits.max_length, self.interface
        positions = InputSpec(name=POSITIONS, dtype="int64", axes=[BATCH, SEQUENCE], role="positions", size=size)
        return Decoding(
            tokens=interface.tokens,
            position_ids=positions if POSITIONS in interface.names else None,
            answer=answer_output(interface.vocab, None),
            cache=CacheTensors(
                [(heads, size) for heads, size, _ in interface.shapes], [size for *_, size in interface.shapes]
            ),
            encodings=self.encodings,
            lengths=self._limits,
        )

    @property
    def outputs(self) -> list[OutputSpec]:
        """The keys and values of its graph have no right value here: calls that read them show that they are right."""
        answer, *present = super().outputs
        return [answer, *(msgspec.structs.replace(spec, compared=False) for spec in present)]

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """The logits of the new tokens, by the forward of all tokens of each row, and past and new tokens."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        memory = _Memory(past, mask_BS.shape[1], static=self.caching.cache.static)
        ids_BS = memory.with_past(0, ids_BT)
        if positions_BT is None:
            positions_BT = torch.full_like(ids_BT, -1)
        # new positions below 0 are counted by the mask
        positions_BS = memory.with_past(1, positions_BT)
        counted_BS = (mask_BS.to(torch.int64).cumsum(1) - 1).clamp(min=0)
        positions_BS = torch.where(positions_BS < 0, counted_BS, positions_BS)
        kept = (ids_BS, positions_BS)
        present = [memory.present(shape, kept, self._dtype) for shape in self.interface.shapes]
        return self._of_rows(ids_BS, positions_BS, mask_BS != 0, ids_BT.shape[1]), present

    @property
    def _dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.user.parameters() if parameter.is_floating_point())

    def called(self, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """The logits of rows without padding, [B, T, V]."""
        logits_BTV: Tensor
        (logits_BTV,) = Forward(self.user, self.interface.names)(ids_BT, torch.ones_like(ids_BT), positions_BT)
        return logits_BTV

    def _of_rows(self, ids_BS: Tensor, positions_BS: Tensor, keep_BS: Tensor, new: int) -> Tensor:
        """The logits of the last ``new`` tokens, [B, T, V], of each row without its padding; 0 for padding."""
        # one call for a batch without padding, else one for each row
        calls = [slice(None)] if bool(keep_BS.all()) else [slice(row, row + 1) for row in range(len(ids_BS))]
        logits_BTV = torch.zeros((len(ids_BS), new, self.interface.vocab), dtype=self._dtype, device=ids_BS.device)
        for rows in calls:
            keep_S = keep_BS[rows][0]
            kept_T = keep_S[-new:]
            if count := int(kept_T.sum()):
                ids_BN, positions_BN = (x_BS[rows][:, keep_S] for x_BS in (ids_BS, positions_BS))
                own_BNV = self.called(ids_BN, positions_BN)
                logits_BTV[rows, kept_T] = own_BNV[:, -count:].to(logits_BTV.dtype)
        return logits_BTV


class _Memory:
    """Numbers of tokens in a KV cache: three digits in its first channels, as bfloat16 has integers up to 256 alone."""

    base, digits = 128, LEAST_CHANNELS

    def __init__(self, past: Sequence[KeysAndValues] | None, total: int, *, static: bool) -> None:
        self._past, self._total = None if past is None else past[0], total
        self._slots = self._past[0].shape[2] if static and self._past is not None else total

    def with_past(self, kind: int, new_BT: Tensor) -> Tensor:
        """The numbers of past and new tokens, [B, S]; ``kind``: 0 for those in keys, 1 for those in values."""
        if self._past is None:
            return new_BT
        channels_BGPD = self._past[kind][:, :, : self._total - new_BT.shape[1]]
        digits_BPN = channels_BGPD.transpose(1, 2).flatten(2)[..., : self.digits].to(torch.int64)
        places_N = self.base ** torch.arange(digits_BPN.shape[-1], device=new_BT.device)
        return torch.cat(((digits_BPN * places_N).sum(-1), new_BT), 1)

    def present(self, shape: tuple[int, int, int], kept: tuple[Tensor, Tensor], dtype: torch.dtype) -> KeysAndValues:
        """Keys and values [B, G, S, D], or of all slots, that hold the numbers ``kept`` [B, S]."""
        heads, *widths = shape
        key, value = (self._channels(x_BS, heads, width, dtype) for x_BS, width in zip(kept, widths, strict=True))
        return key, value

    def _channels(self, numbers_BS: Tensor, heads: int, width: int, dtype: torch.dtype) -> Tensor:
        places_N = self.base ** torch.arange(self.digits, device=numbers_BS.device)
        digits_BSN = numbers_BS[..., None] // places_N % self.base
        channels_BSC = F.pad(digits_BSN, (0, heads * width - self.digits, 0, self._slots - self._total))
        return channels_BSC.reshape(*channels_BSC.shape[:2], heads, width).transpose(1, 2).to(dtype)

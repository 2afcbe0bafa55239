"""Adds posexport's KV cache to a causal language model of transformers; `attention` reads and writes it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.models.forward_decoder import POSITIONS
from posexport.modules.around_forward import AroundForward
from posexport.modules.user_module import UserModule
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import KeysAndValues, Reach
from posexport.nn.calling import carried, carrying
from posexport.nn.layer_states import States
from posexport.through.planned_call import Layer, PlannedCall
from posexport.through.recorded import recorded


@dataclass(frozen=True)
class More:
    """The further inputs of an `EmbedsDecoder` in a call, by name."""

    tensors: Mapping[str, Tensor]


def first_words(tokens: InputSpec, vocab: int) -> InputSpec:
    """An input of ids below ``vocab``, or of embeddings."""
    if tokens.size is None or tokens.size <= vocab:
        return tokens
    return msgspec.structs.replace(tokens, size=vocab, padding=min(tokens.padding, vocab - 1))


def more_inputs() -> Mapping[str, Tensor]:
    """Those of the call that runs now."""
    more = carried(More)
    return {} if more is None else more.tensors


class ThroughDecoder(AroundForward):
    """A causal language model of transformers with a KV cache.

    Args:
        user: the model without a cache.
        layers: its attentions in call order.
    """

    #: whether the proof compares with the forward without a cache (`posexport.proof.references.judged_by_forward`).
    #: Routers of experts compute in float32, and rounding may change the choice between two close experts
    judged_by_forward = False
    #: whether a row may have padding between its tokens
    padding_between = False

    def __init__(
        self, user: UserModule, layers: list[Layer], tokens: InputSpec, vocab: int, limits: LengthContract
    ) -> None:
        super().__init__(user, tokens, vocab, limits)
        self.layers = layers
        self._takes |= {POSITIONS}

    @property
    def cached(self) -> list[Layer]:
        """The attentions whose keys and values are kept; others read theirs."""
        return [layer for layer in self.layers if layer.shares is None]

    @property
    def encodings(self) -> list[Encoding]:
        """None that posexport knows: positions are in the model's code."""
        return [NoPE() for _ in self.layers]

    @property
    def cached_heads(self) -> Sequence[tuple[int, int]]:
        return [(layer.kv_heads, layer.size) for layer in self.cached]

    def reduced_to(self, vocab: int) -> None:
        """Bring its facts up to date after layers, and words from ``vocab`` on, were left out of ``user``."""
        self.vocab, self._tokens = vocab, first_words(self._tokens, vocab)
        self._plan(*recorded(self.user, self._limits.max_length))

    def _plan(self, layers: list[Layer], kept: States) -> None:
        self.layers = layers

    def reach(self, mask_BS: Tensor, new: int, positions: Tensor | None) -> Reach:
        """The positions that attention reads; ``positions``: an input."""
        return Reach.by_mask(mask_BS, new, self.caching, positions)

    def numbered(self, at: Reach, positions: Tensor | None) -> Reach:
        """The same with the positions that the model is called with."""
        return at

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        """Make attention use the KV cache of ``call`` inside the block."""
        planned = PlannedCall(
            call.at,
            call.mask_BS,
            call.past,
            present=call.present,
            plan=self.layers,
            padding_between=self.padding_between,
        )
        return cached_call(planned)

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Logits and KV cache; checks that every layer of the plan was called."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = self.reach(mask_BS, ids_BT.shape[1], positions_BT)
        call = CachedCall(at, mask_BS, past)
        with self.calling(call):
            logits = self._logits(ids_BT, mask_BS[:, at.queries.slots_T], self.numbered(at, positions_BT))
        if len(call.present) != len(self.cached):
            raise NotCachedError(f"it keeps {len(call.present)} keys and values, and kept {len(self.cached)} before")
        if torch.compiler.is_compiling():
            self.user.attentions[:] = [None] * len(self.layers)
        return logits, call.present

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, at: Reach, **more: Tensor) -> Tensor:
        return super()._logits(ids_BT, mask_BT, at, **more_inputs(), **more)


class EmbedsDecoder(ThroughDecoder):
    """`ThroughDecoder` with embeddings instead of token ids, and further inputs, ``more``."""

    more: Sequence[InputSpec] = ()

    @property
    def inputs(self) -> list[InputSpec]:
        return [*super().inputs, *self.more]

    def forward(  # type: ignore[override]  # the input has another name
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        more = {spec.name: named.pop(spec.name) for spec in self.more if spec.name in named}
        with carrying(More(more), More):
            return super().forward(inputs_embeds, attention_mask, past_key_values, position_ids, **named)

"""Adds posexport's KV cache to a causal language model of transformers; `attention` reads and writes it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.modules.own_decoder import POSITIONS
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.plain.plan import Plan
from posexport.modules.user_module import UserModule, by_name
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import KeysAndValues
from posexport.sources.source import Source
from posexport.spec import InputSpec, LengthContract
from posexport.through.attention import Layer, PlannedCall
from posexport.through.module import TransformersModule


class ThroughDecoder(PlainDecoder):
    """A causal language model of transformers with a KV cache; ``layers``: its attentions in call order."""

    #: routers of experts compute in float32, and rounding may change the choice between two close experts
    judged_by_forward = False

    def __init__(
        self, user: UserModule, layers: list[Layer], tokens: InputSpec, vocab: int, limits: LengthContract
    ) -> None:
        plan = Plan(tokens.name, [], [(layer.kv_heads, layer.size) for layer in layers])
        super().__init__(user, plan, tokens, vocab, limits)
        self.vocab = vocab
        self.layers = layers
        self._takes |= {POSITIONS}

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        """Make attention use the KV cache of ``call`` inside the block."""
        planned = PlannedCall(call.at, call.mask_BS, call.past, present=call.present, plan=self.layers)
        return cached_call(planned)

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Logits and KV cache (see `PlainDecoder`); checks that every layer of the plan was called."""
        logits, present = super().decode(ids_BT, mask_BS, past, positions_BT)
        if len(present) != len(self.layers):
            raise NotCachedError(f"it makes {len(present)} calls of attention, and made {len(self.layers)} before")
        if torch.compiler.is_compiling():
            self.user.attentions[:] = [None] * len(present)
        return logits, present


class EmbedsDecoder(ThroughDecoder):
    """`ThroughDecoder` with embeddings instead of token ids."""

    def forward(  # type: ignore[override]  # the input has another name
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        return super().forward(inputs_embeds, attention_mask, past_key_values, position_ids, **named)


def embeds_decoder(
    source: Source, text: TransformersModule, embed: Any, name: str, kind: type[EmbedsDecoder] = EmbedsDecoder
) -> EmbedsDecoder:
    """The decoder of ``source`` (`decoder_source`) with embeddings as its input.

    Args:
        source: the source of the decoder with token ids.
        text: the module of the decoder without a cache.
        embed: the embedding layer.
        name: the name of the input.
        kind: the class of the decoder.
    """
    decoder = source.module
    assert isinstance(decoder, ThroughDecoder)
    ids, *others = text.inputs
    tokens = msgspec.structs.replace(ids, name=name, dtype="float32", role="values", size=None, padding=0)
    tokens = msgspec.structs.replace(tokens, axes=[*ids.axes, embed.weight.shape[-1]])
    inputs = [tokens, *others]
    user = by_name(source.name, text.with_inputs(inputs), inputs, decoder.user.outputs)
    return kind(user, decoder.layers, tokens, decoder.vocab, decoder.decoding.lengths).eval()

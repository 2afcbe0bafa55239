"""Adds posexport's KV cache to a causal language model of transformers; `attention` reads and writes it."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.modules import with_cache
from posexport.modules.own_decoder import POSITIONS
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.plain.fit import check
from posexport.modules.plain.plan import Plan
from posexport.modules.user_module import UserModule, by_name
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import KeysAndValues
from posexport.sources.source import Source
from posexport.spec import InputSpec, LengthContract
from posexport.through.attention import Layer, PlannedCall, noting
from posexport.through.module import TransformersModule
from posexport.torch_fixes.module_precision import in_precision

#: sequence length of the call that records the layers
_NOTED = 5


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


def decoder_source(source: Source, depth: int, task: str = with_cache.TASK) -> Source:
    """Add a KV cache to the source of a causal language model with ``depth`` layers; ``task`` is for messages.

    Raises:
        PosexportError: the model cannot have a KV cache.
    """
    user = source.module
    assert isinstance(user, UserModule)
    try:
        # record the attention of every layer
        layers = _layers(user, source)
        if not layers:
            raise NotCachedError("its attention is code of its own, which no KV cache of posexport's goes through")
        if len(layers) < depth:
            raise NotCachedError(
                f"posexport saw the attention of {len(layers)} of its {depth} layers; a layer without "
                "attention keeps a state of its own"
            )
        # the longest input that the decoder with a cache accepts
        tokens, vocab = with_cache.tokens_of(source, user)
        decoder, remarks = with_cache.limited(
            source, lambda limits: ThroughDecoder(user, layers, tokens, vocab, limits).eval()
        )
        # compare logits with and without the cache, in float64 if memory allows a copy
        trial, dtype = decoder, torch.float32
        if with_cache.small(user):
            trial, dtype = copy.deepcopy(decoder), torch.float64
            in_precision(trial, dtype)
            dtype = _narrowest(trial)
        check(trial, dtype)
    except NotCachedError as err:
        raise PosexportError(
            f"{source.name} cannot be converted for {task} through transformers: {err}"
            + ("; the task features converts its hidden states, without a KV cache" if task == with_cache.TASK else "")
        ) from err
    return msgspec.structs.replace(with_cache.as_source(source, decoder, remarks), encoding=None)


def _narrowest(decoder: PlainDecoder) -> torch.dtype:
    """The narrowest dtype inside a float64 decoder: routers of experts always compute in float32."""
    seen: set[torch.dtype] = set()

    def note(_: object, __: object, answer: object) -> None:
        parts = answer if isinstance(answer, tuple) else (answer,)
        seen.update(x.dtype for x in parts if isinstance(x, Tensor) and x.is_floating_point())

    hooks = [part.register_forward_hook(note) for part in decoder.user.modules()]
    ids_1T = torch.zeros((1, 1), dtype=torch.int64)
    with torch.no_grad():
        decoder.plain(ids_1T, torch.ones_like(ids_1T))
    for hook in hooks:
        hook.remove()
    return torch.float32 if torch.float32 in seen else torch.float64


def _layers(user: UserModule, source: Source) -> list[Layer]:
    """The attentions of one forward pass, in call order."""
    length = min(_NOTED, source.limits.max_length or _NOTED)
    ids_1T = torch.zeros((1, length), dtype=torch.int64)
    tensors = {spec.name: ids_1T if spec.role == "tokens" else torch.ones_like(ids_1T) for spec in source.inputs}
    with torch.no_grad(), noting() as layers:
        user.module(**tensors)
    return layers

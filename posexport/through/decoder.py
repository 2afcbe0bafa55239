"""A decoder of transformers with our KV cache: its layers' attention reads and writes it (`attention`)."""

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
from posexport.through.wrapped import Wrapped
from posexport.torch_fixes.module_precision import in_precision

#: tokens that its layers are noted with
_NOTED = 5


class ThroughDecoder(PlainDecoder):
    """A causal language model of transformers. ``layers``: its attentions, in the order of their calls."""

    #: routers of experts compute in float32, and may choose another one where two are nearly alike
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
        """Attention of `NAME` takes part in ``call``."""
        planned = PlannedCall(call.at, call.mask_BS, call.past, present=call.present, plan=self.layers)
        return cached_call(planned)

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """As of any decoder; every layer was seen, or there would be no plan."""
        logits, present = super().decode(ids_BT, mask_BS, past, positions_BT)
        if len(present) != len(self.layers):
            raise NotCachedError(f"it makes {len(present)} calls of attention, and made {len(self.layers)} before")
        if torch.compiler.is_compiling():
            self.user.attentions[:] = [None] * len(present)
        return logits, present


class EmbedsDecoder(ThroughDecoder):
    """The same, which takes embeddings in the place of ids."""

    def forward(  # type: ignore[override]  # by the name of its own input
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """As of any decoder with a cache."""
        return super().forward(inputs_embeds, attention_mask, past_key_values, position_ids, **named)


def embeds_decoder(
    source: Source, text: Wrapped, embed: Any, name: str, kind: type[EmbedsDecoder] = EmbedsDecoder
) -> EmbedsDecoder:
    """The decoder of ``source`` (`decoder_source`), of the embeddings ``name`` that ``embed`` gives, as ``kind``."""
    decoder = source.module
    assert isinstance(decoder, ThroughDecoder)
    ids, *others = text.inputs
    tokens = msgspec.structs.replace(ids, name=name, dtype="float32", role="values", size=None, padding=0)
    tokens = msgspec.structs.replace(tokens, axes=[*ids.axes, embed.weight.shape[-1]])
    inputs = [tokens, *others]
    user = by_name(source.name, text.given(inputs), inputs, decoder.user.outputs)
    return kind(user, decoder.layers, tokens, decoder.vocab, decoder.decoding.lengths).eval()


def decoder_source(source: Source, depth: int, task: str = with_cache.TASK) -> Source:
    """The source of a causal language model of ``depth`` layers without a cache, as one with a cache, for ``task``.

    Raises:
        PosexportError: what keeps it from having one, in one sentence.
    """
    user = source.module
    assert isinstance(user, UserModule)
    try:
        layers = _layers(user, source)
        if not layers:
            raise NotCachedError("its attention is code of its own, which no KV cache of posexport's goes through")
        if len(layers) < depth:
            raise NotCachedError(
                f"posexport saw the attention of {len(layers)} of its {depth} layers; a layer without "
                "attention keeps a state of its own"
            )
        tokens, vocab = with_cache.tokens_of(source, user)
        decoder, remarks = with_cache.limited(
            source, lambda limits: ThroughDecoder(user, layers, tokens, vocab, limits).eval()
        )
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
    """What a decoder of float64 rounds to: routers of experts compute in float32 whatever they are given."""
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
    length = min(_NOTED, source.limits.max_length or _NOTED)
    ids_1T = torch.zeros((1, length), dtype=torch.int64)
    tensors = {spec.name: ids_1T if spec.role == "tokens" else torch.ones_like(ids_1T) for spec in source.inputs}
    with torch.no_grad(), noting() as layers:
        user.module(**tensors)
    return layers

"""A user's decoder made of `posexport.nn.Attention` whose encoding depends on the length of a call, with a KV cache.

The user's ``forward(input_ids, attention_mask)`` returns logits [B, T, V] and knows nothing of a cache.
`posexport.nn.cached_call` threads one through its causal attention layers, in the order in which they are called; all
else in the model must treat every token by itself, which is tried before anything is exported.

Shape letters: B batch, G KV heads, P past tokens, T new tokens, S past and new tokens, D head size, V vocabulary.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.cached_decoder import Decoding
from posexport.models.definition import reads_numbers
from posexport.models.forward_decoder import IDS, MASK, POSITIONS
from posexport.modules.around_forward import AroundForward
from posexport.modules.copied import copied
from posexport.modules.decoder_facts import as_source, limited, small, tokens_of
from posexport.modules.in_parts import differ, in_calls
from posexport.modules.user_module import UserModule
from posexport.nn import Attention, InputEncoding
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_precision import in_precision

#: rows and tokens of the calls that check a module before it is exported
_ROWS, _LENGTH = 3, 9


class OwnDecoder(AroundForward):
    """A user's module, as a decoder with a KV cache.

    ``paths``: of the attention layers, in the order in which ``user`` calls them; a layer that is called twice, twice.
    """

    def __init__(
        self, user: UserModule, paths: Sequence[str], tokens: InputSpec, vocab: int, limits: LengthContract
    ) -> None:
        super().__init__(user, tokens, vocab, limits)
        self._paths = list(paths)

    @property
    def layers(self) -> list[Attention]:
        """The attention layers, in the order in which they are called."""
        modules = [self.user.module.get_submodule(path) for path in self._paths]
        return [layer for layer in modules if isinstance(layer, Attention)]

    @property
    def encodings(self) -> list[Encoding]:
        """Of every layer; where a layer has none, what acts on the token embeddings."""
        inputs = [part.encoding for part in self.user.module.modules() if isinstance(part, InputEncoding)]
        return [inputs[0] if inputs and not layer.encoding.hooks else layer.encoding for layer in self.layers]

    @property
    def cached_heads(self) -> Sequence[tuple[int, int]]:
        return [(layer.kv_heads, layer.head_size) for layer in self.layers]

    @property
    def reads_positions(self) -> bool:
        return super().reads_positions or any(map(reads_numbers, self._every_encoding))

    @property
    def _every_encoding(self) -> list[Encoding]:
        return [part for part in self.user.module.modules() if isinstance(part, Encoding)]

    @property
    def decoding(self) -> Decoding:
        return replace(super().decoding, encodings=self._every_encoding)

    @property
    def takes_mask(self) -> bool:
        """Whether the user's forward knows of padding."""
        return MASK in self._takes

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """The logits of the new tokens, and every layer's keys and values."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = Reach.by_mask(mask_BS, ids_BT.shape[1], self.caching, positions_BT)
        with cached_call(CachedCall(at, mask_BS, past)) as call:
            logits = self._logits(ids_BT, mask_BS[:, at.queries.slots_T], at)
        # a tracer has proxies instead of modules
        traced = torch.compiler.is_compiling()
        if not traced and [id(layer) for layer in call.layers] != [id(layer) for layer in self.layers]:
            raise PosexportError(
                "forward calls its posexport.nn.Attention layers in another order than in its first call; it must call "
                "the same ones for every input"
            )
        return logits, call.present


def _called(user: UserModule) -> list[str]:
    """The paths of the attention layers, in the order in which forward calls them."""
    module = copied(user.argument, user.module) if small(user) else user.module
    mask_11 = torch.ones((1, 1), dtype=torch.int64)
    call = CachedCall(Reach.by_mask(mask_11, 1, Caching()), mask_11, None)
    tensors = {IDS: torch.zeros_like(mask_11), MASK: mask_11, POSITIONS: call.at.queries.ids_BT}
    with torch.no_grad(), cached_call(call):
        module(**{spec.name: tensors[spec.name] for spec in user.inputs})
    if not call.layers:
        raise NotCachedError("forward calls no posexport.nn.Attention")
    paths = {id(submodule): path for path, submodule in module.named_modules()}
    return [paths[id(layer)] for layer in call.layers]


def by_layers(source: Source, user: UserModule) -> tuple[Source, str]:
    """The source of a module with `posexport.nn.Attention`, and the attentions with a cache as a string."""
    paths = _called(user)
    tokens, vocab = tokens_of(source, user)
    decoder, remarks = limited(source, lambda limits: OwnDecoder(user, paths, tokens, vocab, limits).eval())
    if reason := _misfit(decoder):
        raise PosexportError(
            f"{source.name} cannot have a KV cache: {reason}; or convert it for the task features, without a cache"
        )
    return as_source(source, decoder, remarks), f"{len(paths)} causal attention layers"


def _misfit(decoder: OwnDecoder) -> str:
    """Why the module computes something else with a cache than without; empty where it computes the same."""
    limit, size = decoder.limits.max_length or _LENGTH, decoder.inputs[0].size or 1
    length = min(_LENGTH, limit)
    checked, dtype = decoder, torch.float32
    if small(decoder):
        checked, dtype = copy.deepcopy(decoder), torch.float64
        in_precision(checked, torch.float64)
    ids_BT = torch.randint(0, size, (_ROWS, length), generator=torch.Generator().manual_seed(0))
    whole_BT = torch.ones_like(ids_BT)
    # rows of different lengths, each at its end
    padded_BT = (torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)).to(torch.int64)

    with torch.no_grad():
        for mask_BT in (whole_BT, padded_BT) if checked.takes_mask else (whole_BT,):
            cached = checked(ids_BT, mask_BT)[0]
            if differ(cached, checked.uncached_logits(ids_BT, mask_BT), mask_BT, dtype):
                if mask_BT is whole_BT:
                    return "its logits are others when its attention layers take their positions from the cache"
                return (
                    "padding on the left changes its logits: hand the attention_mask of forward on to every "
                    "posexport.nn.Attention and posexport.nn.InputEncoding"
                )
        if length > 2 and not decoder.limits.length_dependent:
            parts = (length - 2, 1, 1)
            if differ(in_calls(checked, ids_BT, whole_BT, parts), checked(ids_BT, whole_BT)[0], whole_BT, dtype):
                return (
                    "read in parts it gives other logits than read at once, so something beside posexport.nn.Attention "
                    "looks at other tokens or counts them (a convolution, positions from torch.arange); number tokens "
                    "with posexport.nn.InputEncoding, or let forward take position_ids"
                )
    return ""

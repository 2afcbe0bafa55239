"""A user's decoder made of `posexport.nn.Attention`, with a KV cache that its author did not write.

The user's ``forward(input_ids, attention_mask)`` returns logits [B, T, V] and knows nothing of a cache.
`posexport.nn.cached_call` threads one through its causal attention layers, in the order in which they are called; all
else in the model must treat every token by itself, which is tried before anything is exported.

Shape letters: B batch, G KV heads, P past tokens, T new tokens, S past and new tokens, D head size, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posexport.definition.cached_decoder import CachedDecoder, CacheTensors, Decoding, answer_output
from posexport.definition.definition import reads_numbers
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.modules.user_module import UserModule
from posexport.nn import Attention, InputEncoding
from posexport.nn.cached_call import CachedCall, cached_call
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.spec import BATCH, SEQUENCE, InputSpec, LengthContract

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"


class OwnDecoder(CachedDecoder):
    """A user's module, as a decoder with a KV cache.

    ``paths``: of the attention layers, in the order in which ``user`` calls them; a layer that is called twice, twice.
    """

    #: how past tokens are kept; `posexport.sources.prepare` changes it
    caching: Caching = Caching()

    def __init__(
        self, user: UserModule, paths: Sequence[str], tokens: InputSpec, vocab: int, limits: LengthContract
    ) -> None:
        super().__init__()
        self.user = user
        self._paths, self._tokens, self._vocab, self._limits = list(paths), tokens, vocab, limits
        self._takes = frozenset(spec.name for spec in user.inputs)

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
    def decoding(self) -> Decoding:
        encodings = [part for part in self.user.module.modules() if isinstance(part, Encoding)]
        size = self._limits.max_length
        positions = InputSpec(name=POSITIONS, dtype="int64", axes=[BATCH, SEQUENCE], role="positions", size=size)
        read = POSITIONS in self._takes or any(reads_numbers(encoding) for encoding in encodings)
        return Decoding(
            tokens=self._tokens,
            position_ids=positions if read else None,
            answer=answer_output(self._vocab, None),
            cache=CacheTensors([(layer.kv_heads, layer.head_size) for layer in self.layers]),
            encodings=encodings,
            lengths=self._limits,
        )

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

    def plain(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        """The logits of the user's forward itself for tokens from ``since`` on, in one call without a cache."""
        return self._logits(ids_BT, mask_BT, Reach.by_mask(mask_BT, ids_BT.shape[1], Caching()))[:, since:]

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, at: Reach) -> Tensor:
        tensors = {IDS: ids_BT, MASK: mask_BT, POSITIONS: at.queries.ids_BT}
        logits: Tensor
        (logits,) = self.user(**{name: value for name, value in tensors.items() if name in self._takes})
        return logits

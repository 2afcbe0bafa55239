"""Decoders around a forward of someone else's, which knows nothing of the KV cache or the states that they keep.

Shape letters: B batch, T tokens, S past and new tokens, V vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE, InputSpec, LengthContract
from posexport.models.cached_decoder import CachedDecoder, CacheTensors, Decoding, answer_output
from posexport.models.forward_decoder import MASK, POSITIONS
from posexport.modules.user_module import UserModule
from posexport.nn.caching import Caching, Reach


class AroundForward(CachedDecoder):
    """A decoder that calls ``user`` with the ids, the mask and the positions, as far as ``user`` takes them."""

    #: how past tokens are kept; `posexport.sources.prepare` changes it
    caching: Caching = Caching()

    def __init__(self, user: UserModule, tokens: InputSpec, vocab: int, limits: LengthContract) -> None:
        super().__init__()
        self.user, self.vocab = user, vocab
        self._tokens, self._limits = tokens, limits
        self._takes = frozenset(spec.name for spec in user.inputs)

    @property
    def cached_heads(self) -> Sequence[tuple[int, int]]:
        """KV heads and their size, of every attention that keeps keys and values."""
        return []

    @property
    def reads_positions(self) -> bool:
        """Whether the graph has an input of positions."""
        return POSITIONS in self._takes

    @property
    def decoding(self) -> Decoding:
        size = self._limits.max_length
        positions = InputSpec(name=POSITIONS, dtype="int64", axes=[BATCH, SEQUENCE], role="positions", size=size)
        return Decoding(
            tokens=self._tokens,
            position_ids=positions if self.reads_positions else None,
            answer=answer_output(self.vocab, None),
            cache=CacheTensors(self.cached_heads),
            encodings=self.encodings,
            lengths=self._limits,
        )

    def uncached_logits(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        """The logits of the forward itself for tokens from ``since`` on, in one call without a cache or states."""
        return self._logits(ids_BT, mask_BT, Reach.by_mask(mask_BT, ids_BT.shape[1], Caching()))[:, since:]

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, at: Reach, **more: Tensor) -> Tensor:
        """The logits of the new tokens [B, T, V]; ``more``: further inputs."""
        tensors = {self._tokens.name: ids_BT, MASK: mask_BT, POSITIONS: at.queries.ids_BT, **more}
        logits: Tensor
        (logits,) = self.user(**{name: value for name, value in tensors.items() if name in self._takes})
        return logits

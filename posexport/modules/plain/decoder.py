"""A user's decoder of PyTorch's own operations, with a KV cache that its author did not write.

Shape letters: B batch, T new tokens, S past and new tokens.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec
import torch
from torch import Tensor, nn

from posexport.definition.cached_decoder import CachedDecoder, CacheTensors, Decoding, answer_output
from posexport.encodings.alibi import Alibi
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.nope import NoPE
from posexport.modules.own_decoder import MASK, POSITIONS
from posexport.modules.plain import by_row
from posexport.modules.plain.cached_mode import CachedMode
from posexport.modules.plain.plan import Plan
from posexport.modules.recognise.mode import chosen
from posexport.modules.user_module import UserModule, returning
from posexport.nn.cached_call import CachedCall
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.spec import BATCH, SEQUENCE, InputSpec, LengthContract


class PlainDecoder(CachedDecoder):
    """A user's module, as a decoder with a KV cache. ``plan``: what it does along the token axis."""

    #: how past tokens are kept; `posexport.sources.prepare` changes it
    caching: Caching = Caching()
    #: whether the proof asks the user's forward as well (`posexport.parity.references.own_forward`)
    judged_by_forward = True

    def __init__(self, user: UserModule, plan: Plan, tokens: InputSpec, vocab: int, limits: LengthContract) -> None:
        super().__init__()
        self.user, self.plan_of_calls = user, plan
        #: what forward itself returns, which may be the logits of the last token alone
        self._own_outputs = user.outputs
        if plan.of_last:
            self.user = returning(user, [msgspec.structs.replace(user.outputs[0], axes=[BATCH, SEQUENCE, vocab])])
        self._tokens, self._vocab, self._limits = tokens, vocab, limits
        self._takes = frozenset(spec.name for spec in user.inputs)
        # positions are in the user's code, which rotates keys before the cache has them
        windows, slopes = plan.windows or [None] * len(plan.shapes), plan.slopes or [()] * len(plan.shapes)
        kinds = {each: _term(*each) for each in zip(windows, slopes, strict=True)}
        self._terms = nn.ModuleList(kinds[each] for each in zip(windows, slopes, strict=True))

    @property
    def encodings(self) -> list[Encoding]:
        return [each for each in self._terms if isinstance(each, Encoding)]

    @property
    def decoding(self) -> Decoding:
        size = self._limits.max_length
        positions = InputSpec(name=POSITIONS, dtype="int64", axes=[BATCH, SEQUENCE], role="positions", size=size)
        return Decoding(
            tokens=self._tokens,
            position_ids=positions if self.plan_of_calls.counts or POSITIONS in self._takes else None,
            answer=answer_output(self._vocab, None),
            cache=CacheTensors(self.plan_of_calls.shapes),
            encodings=self.encodings,
            lengths=msgspec.structs.replace(self._limits, boundaries=self._boundaries),
        )

    @property
    def _boundaries(self) -> list[int]:
        """Those of the user's module, and the longest inputs that are inside a window."""
        longest = [window for window in self.plan_of_calls.windows if window is not None]
        limit = self._limits.max_length
        return sorted({*self._limits.boundaries, *(n for n in longest if limit is None or n <= limit)})

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """The logits of the new tokens, and every layer's keys and values."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = self.reach(mask_BS, ids_BT.shape[1], positions_BT)
        call = CachedCall(at, mask_BS, past)
        with self.calling(call):
            logits = self.logits(ids_BT, mask_BS[:, at.queries.slots_T], self.numbered(at, positions_BT))
        return logits, call.present

    def reach(self, mask_BS: Tensor, new: int, positions: Tensor | None) -> Reach:
        """What attention takes part in; ``positions``: those that were given."""
        return Reach.by_mask(mask_BS, new, self.caching, positions)

    def numbered(self, at: Reach, positions: Tensor | None) -> Reach:
        """The same with the positions that the module is called with."""
        return at

    def calling(self, call: CachedCall) -> AbstractContextManager[object]:
        """Inside the block, the module's attention and positions are those of ``call``."""
        return chosen(self.mode(call))

    def mode(self, call: CachedCall) -> CachedMode:
        """What the module's operations do in one call."""
        return CachedMode(self.plan_of_calls, self.encodings, call)

    @property
    def own(self) -> UserModule:
        """The user's module, called so that it returns what its forward does."""
        return returning(self.user, self._own_outputs)

    def plain(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        """The logits of the user's forward itself for tokens from ``since`` on, without a cache.

        Of a module that returns those of the last token, each token's are those of a call that ends with it.
        """
        length, own = ids_BT.shape[1], self.own
        if not self.plan_of_calls.of_last:
            return self._called(own, ids_BT, mask_BT, Reach.by_mask(mask_BT, length, Caching()))[:, since:]
        ends = range(since + 1, length + 1)
        calls = [(ids_BT[:, :end], mask_BT[:, :end], Reach.by_mask(mask_BT[:, :end], end, Caching())) for end in ends]
        return torch.stack([self._called(own, *call).flatten(1) for call in calls], 1)

    def logits(self, ids_BT: Tensor, mask_BT: Tensor, at: Reach) -> Tensor:
        return self._called(self.user, ids_BT, mask_BT, at)

    def _called(self, user: UserModule, ids_BT: Tensor, mask_BT: Tensor, at: Reach) -> Tensor:
        tensors = {self.plan_of_calls.token: ids_BT, MASK: mask_BT, POSITIONS: at.queries.ids_BT}
        for tensor in tensors.values():
            by_row.data(tensor)
        logits: Tensor
        (logits,) = user(**{name: value for name, value in tensors.items() if name in self._takes})
        return logits


def _term(window: int | None, slopes: tuple[float, ...]) -> Encoding:
    """What a user's mask adds to the scores beside causality and padding."""
    if slopes:
        encoding = Alibi(heads=len(slopes), variant="causal")
        encoding.slopes = list(slopes)  # the module's own
        return encoding
    return NoPE() if window is None else LocalWindow(left=window - 1, right=0)

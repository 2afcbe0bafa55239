"""What a graph of another tool is fed that its source does not say: counted positions, and inputs of its own.

Shape letters: B batch, T new tokens, S past and new tokens (of caches: the encoder's states), C model
size, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.parity.criterion import Array
from posexport.parity.foreign.signature import Declared
from posexport.parity.grid.inputs import Feeds
from posexport.sources.source import Source
from posexport.spec import PAST, SEQUENCE, TOTAL, InputSpec

POSITIONS = "position_ids"


@dataclass(frozen=True)
class Call:
    """The tokens of a call, [B, T], and the mask of them and what is in the cache, [B, S].

    ``overhead``: of an encoder that counts all but padding ids, the positions that no token has; None: of a decoder.
    """

    ids_BT: Array
    mask_BS: Array
    overhead: int | None

    @staticmethod
    def of(feeds: Feeds, source: Source) -> "Call":
        """Read from what ``source`` takes."""
        tokens = token_input(source.inputs)
        ids_BT = np.zeros((1, 0), dtype=np.int64) if tokens is None else feeds[tokens.name]
        mask = next((s for s in source.inputs if s.role == "mask" and s.axes[-1] in (SEQUENCE, TOTAL)), None)
        past = next((feeds[s.name].shape[s.axes.index(PAST)] for s in source.inputs if PAST in s.axes), 0)
        if mask is None:
            mask_BS = np.ones((ids_BT.shape[0], past + ids_BT.shape[1]), dtype=np.int64)
        else:
            mask_BS = feeds[mask.name].astype(np.int64)
        return Call(ids_BT, mask_BS, None if source.promises.causal else source.promises.position_offset)

    @property
    def past(self) -> int:
        """Tokens in the cache."""
        return int(self.mask_BS.shape[1] - self.ids_BT.shape[1])

    @property
    def places_T(self) -> Array:
        """Where the new tokens stand, padding counted."""
        return np.arange(self.past, self.mask_BS.shape[1], dtype=np.int64)

    @property
    def positions_BT(self) -> Array:
        """As transformers counts them where none are given: by the mask (decoders), by place, or by ids (RoBERTa)."""
        if self.overhead is None:
            counted_BS: Array = np.maximum(self.mask_BS.cumsum(1) - 1, 0)
            return counted_BS[:, self.past :]
        if self.overhead == 0:
            return np.broadcast_to(self.places_T, self.ids_BT.shape)
        real_BT = self.ids_BT != self.overhead - 1
        counted_BT: Array = real_BT.cumsum(1) * real_BT
        return counted_BT + self.overhead - 1


def positions(call: Call, given: Array | None, port: Declared) -> Array:
    """What ``position_ids`` is fed: ``given`` where that is not negative, else counted; by place if rows share them."""
    if shared(port):
        return call.places_T if port.shape is not None and len(port.shape) == 1 else call.places_T[None]
    if given is None:
        return call.positions_BT
    return np.where(given < 0, call.positions_BT, given)


def unread(port: Declared, states_BSC: Array) -> Array:
    """For keys or values [B, H, S, D] of a call without a past, which takes the states instead."""
    shape = port.shape or ()
    rows, length = states_BSC.shape[:2]
    sizes = [size if isinstance(size, int) else (rows, 1, length, 1)[axis] for axis, size in enumerate(shape)]
    return np.zeros(sizes, dtype=np.float32)


def shared(port: Declared) -> bool:
    """Whether all rows have the same positions."""
    return port.shape is not None and (len(port.shape) == 1 or port.shape[0] == 1)


#: what transformers' models are also asked for, when nobody says anything
DERIVED: Mapping[str, Callable[[Call], Array]] = {
    "token_type_ids": lambda call: np.zeros_like(call.ids_BT),
    "attention_mask": lambda call: call.mask_BS,
    "decoder_attention_mask": lambda call: call.mask_BS,
    "use_cache_branch": lambda call: np.array([call.past > 0]),
    "cache_position": lambda call: call.places_T,
    "logits_to_keep": lambda _: np.zeros((), dtype=np.int64),  # all
    "num_logits_to_keep": lambda _: np.zeros((), dtype=np.int64),
}


def token_input(inputs: Sequence[InputSpec]) -> InputSpec | None:
    """The ids of the new tokens."""
    return next((spec for spec in inputs if spec.role == "tokens" and SEQUENCE in spec.axes), None)

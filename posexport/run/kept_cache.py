"""A KV cache that stays between the calls of one conversation: it is cut at the first token that differs.

Keys and values of the tokens before it equal a fresh call's. Where they do not (frequencies that depend on the length),
and where states cannot be restored, the tokens are read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import CAPACITY, PAST
from posexport.run.cache import Cache, DecoderInterface, Ids
from posexport.run.chain import Chain
from posexport.run.ort_values import to_array, to_value

if TYPE_CHECKING:
    from onnxruntime import OrtValue

#: copies of states, of the last turns: a cut of a model with states restores one of them
_MOST_SNAPSHOTS = 4


@dataclass(frozen=True)
class _Snapshot:
    """The states after ``tokens`` tokens, by input name."""

    tokens: int
    states: "dict[str, OrtValue]"


class KeptCache(Cache):
    """The cache of one row. ``computed``: how many tokens it has read in all."""

    def __init__(self, chain: Chain, decoder: DecoderInterface, **options: Any) -> None:
        self.computed = 0
        super().__init__(chain, decoder, rows=1, **options)

    def begin(self, prompt: Sequence[int], room: int, *, threshold: int | None, at_once: bool) -> None:
        """Keep the tokens that the cache has of ``prompt``, but the last one, since its logits are needed.

        Args:
            prompt: token ids.
            room: tokens that a static cache must hold.
            threshold: row length beyond which other keys are cached (`posexport.run.prefill.recomputed_from`).
            at_once: keys depend on the length; without a ``threshold`` nothing is kept.
        """
        differs = at_once if threshold is None else self.slots > threshold >= len(prompt)
        self._cut(0 if differs or self._step is not None else self._shared(prompt))
        if self.slots:
            self._grow(room)
        else:
            self.reopen(1, room)

    def clear(self, rows: int) -> None:
        self._snapshots: list[_Snapshot] = []
        super().clear(rows)

    def read(self, ids_BT: Ids, keep_BT: Ids) -> NDArray[Any]:
        logits_BV = super().read(ids_BT, keep_BT)
        self.computed += int(keep_BT.sum())
        return logits_BV

    def prompt_read(self) -> None:
        """Copy the states after the prompt: a template may write the answer in another way in the next prompt."""
        if names := self._states:
            copies = {name: to_value(to_array(self._held[name]).copy(), self._device) for name in names}
            self._snapshots = [*self._snapshots[1 - _MOST_SNAPSHOTS :], _Snapshot(self.slots, copies)]

    @property
    def _states(self) -> list[str]:
        return [spec.name for spec in self._decoder.past if spec.role == "state"]

    def _shared(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's first tokens the cache has, without the prompt's last."""
        most = min(self.slots, len(prompt) - 1)
        differs = self.ids_BS[0, :most] != np.array(prompt[:most], np.int64)
        return int(differs.argmax()) if differs.any() else most

    def _cut(self, count: int) -> None:
        """Keep the first ``count`` tokens, or with states as many as a snapshot up to there has."""
        if count == self.slots:
            return
        before = [snapshot for snapshot in self._snapshots if snapshot.tokens <= count]
        if self._states:
            count = before[-1].tokens if before else 0
        if not count:
            self.clear(1)
            return
        if self._states:
            self._held |= before[-1].states
        self._snapshots = before
        self.mask_BS, self.ids_BS = self.mask_BS[:, :count], self.ids_BS[:, :count]
        for spec in self._decoder.past:
            if PAST in spec.axes:
                held = np.take(to_array(self._held[spec.name]), range(count), axis=spec.axes.index(PAST))
                self._held[spec.name] = self._on_device(held)

    def _grow(self, room: int) -> None:
        """Make the buffers of a static cache as long as ``room``."""
        if room <= self._room:
            return
        for spec in self._decoder.past:
            if CAPACITY in spec.axes:
                held = to_array(self._held[spec.name])
                axis = spec.axes.index(CAPACITY)
                more = [(0, room - held.shape[axis] if place == axis else 0) for place in range(held.ndim)]
                self._held[spec.name] = self._on_device(np.pad(held, more))
        self._room = room

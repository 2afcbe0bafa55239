"""The states of a decoder's layers in a call: what layers take as the state before it, and leave as the one after it.

Replacements of layers (`posexport.through.states`, `posexport.modules.kept_layers`) read and write them, in the order
of the calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from posexport.base.spec import SEQUENCE, TOTAL
from posexport.nn.cached_call import NotCachedError
from posexport.nn.caching import DynamicCache, KeysAndValues

#: kinds of states: the windows of convolutions [B, C, W - 1], and the states of recurrences [B, ...]
CONV, RECURRENT = "conv", "recurrent"
KINDS = (CONV, RECURRENT)


@dataclass
class States:
    """The states of a call by kind, each in the order of the calls. ``past``: None before the first token."""

    past: Mapping[str, Sequence[Tensor]] | None
    present: dict[str, list[Tensor]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All states after the call."""
        return tuple(tensor for kind in KINDS for tensor in self.present[kind])

    @property
    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of the states after the call without the batch, by kind."""
        return {kind: [tuple(x.shape[1:]) for x in kept] for kind, kept in self.present.items() if kept}

    def before(self, kind: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """The state of the next layer of a kind: that after the past tokens, or zeros."""
        if self.past is None:
            return like.new_zeros(shape)
        index, past = len(self.present[kind]), self.past[kind]
        if index >= len(past):
            raise NotCachedError(f"it keeps more states than the {len(past)} of its first call")
        return past[index]


class NoKeysCache(DynamicCache):
    """The KV cache of a decoder without attention: the mask alone says how many tokens there are."""

    trace_sizes: ClassVar[dict[str, int]] = {SEQUENCE: 3, TOTAL: 8}

    def mask(self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None) -> Tensor:
        return torch.ones_like(ids_BT) if mask_BS is None else mask_BS

"""A forward pass of a transformers decoder with posexport's KV cache.

A call without a cache records the attention layers (`posexport.through.attention.noting`); this plan determines how
later calls compute each of them.

Shape letters: B batch, T queries, S keys, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from posexport.encodings.encoding import Term
from posexport.nn.cached_call import CachedCall, NotCachedError
from posexport.nn.caching import Kept, KeysAndValues


@dataclass(frozen=True)
class Layer:
    """The attention of one layer.

    Attributes:
        kv_heads: KV heads.
        size: head size to which keys and values are padded.
        window: width of the sliding window; None without one.
        cross: whether it is cross-attention to the encoder's hidden states.
        shares: index of the self-attention with the keys and values that this layer uses too; None if the layer
            computes its keys and values.
        biased: whether T5's bias is added (`bucketed_bias`).
    """

    kv_heads: int
    size: int
    window: int | None
    cross: bool = False
    shares: int | None = None
    biased: bool = False


@dataclass
class PlannedCall(CachedCall):
    """A forward pass of a transformers decoder with posexport's KV cache.

    Attributes:
        plan: the attention layers of the decoder, in call order.
        crossed: cross-attention keys and values, one pair per cross-attention layer of the plan.
        crossed_mask: additive mask of the encoder's states, [B, 1, 1, S].
        called: number of attention layers that were called so far.
        read: keys and values of every self-attention layer that was called so far.
        blocks_BT: index of every new token's image, -1 for text. Attention inside an image is bidirectional.
        windows_alone: attention inside an image is bidirectional only in layers with a sliding window.
        padding_between: padding may be between tokens of a row, so that sliding windows count tokens, not slots.
        bias: T5's bias of the last layer that has a table.
    """

    plan: Sequence[Layer] = ()
    crossed: Sequence[KeysAndValues] = ()
    crossed_mask: Tensor | None = None
    called: int = 0
    read: list[Kept] = field(default_factory=list)
    blocks_BT: Tensor | None = None
    windows_alone: bool = False
    padding_between: bool = False
    bias: Term | None = None

    def next_layer(self) -> Layer:
        """Return the layer of the current call of attention, and advance to the next one."""
        if self.called >= len(self.plan):
            raise NotCachedError(f"it makes more calls of attention than the {len(self.plan)} of its first call")
        self.called += 1
        return self.plan[self.called - 1]


@dataclass
class CrossingCall(PlannedCall):
    """A call that computes only the cross-attention keys and values, into ``present``.

    Its other outputs are ignored, so that a traced graph contains nothing else.
    """

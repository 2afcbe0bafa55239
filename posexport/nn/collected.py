"""Hidden states and attention probabilities of single layers, collected during a call.

A stack says which layer is next (`reached`), attention what its probabilities are (`attended`); a call that collects
nothing computes nothing for it.

Shape letters: B batch, T tokens, S tokens attended to, H heads, C model size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from posexport.nn.calling import carried

Kind = Literal["hidden_states", "attentions", "cross_attentions"]


@dataclass(frozen=True)
class LayerOutput:
    """Numbers are transformers': hidden state 0 is what the first layer reads, the last one is normalised.

    ``head``: of attentions and cross attentions, one head's alone; None: all heads'.
    """

    kind: Kind
    layer: int
    head: int | None = None

    @property
    def name(self) -> str:
        """``hidden_states.3``, ``attentions.10``, ``attentions.10.5`` or ``cross_attentions.10.5``."""
        return ".".join([self.kind, str(self.layer), *([] if self.head is None else [str(self.head)])])


@dataclass
class Collected:
    """The outputs to collect in a call, the number of the current layer, and the tensors so far."""

    outputs: Sequence[LayerOutput]
    layer: int = -1
    tensors: dict[LayerOutput, Tensor] = field(default_factory=dict)

    def of_layer(self, kind: Kind) -> list[LayerOutput]:
        """The outputs of the current layer that have no tensor yet."""
        return [one for one in self.outputs if (one.kind, one.layer) == (kind, self.layer) and one not in self.tensors]


def reached(layer: int, x_BTC: Tensor) -> None:
    """``x_BTC`` is what the layer of this number reads; after the last layer, the states of the whole stack."""
    collected = carried(Collected)
    if collected is None:
        return
    collected.layer = layer
    for one in collected.of_layer("hidden_states"):
        collected.tensors[one] = x_BTC


def attended(probabilities: Callable[[slice], Tensor], kind: Kind = "attentions") -> None:
    """``probabilities``, [B, H, T, S], of some heads; of a layer's attentions the first one of each kind counts."""
    collected = carried(Collected)
    if collected is None:
        return
    for one in collected.of_layer(kind):
        some = slice(None) if one.head is None else slice(one.head, one.head + 1)
        p_BHTS = probabilities(some)
        collected.tensors[one] = p_BHTS if one.head is None else p_BHTS[:, 0]

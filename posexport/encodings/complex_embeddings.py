"""A token's embedding as the amplitude of a wave over positions, in two real planes.

Wang et al., "Encoding word order in complex embeddings" (arXiv:1912.12333), section 2: word j at position p is
``r_j exp(i (w p + theta))``, channel by channel. ONNX Runtime has no complex tensors; the real and the
imaginary part are two planes of real channels, which the definition projects to the model size.

Not done: frequencies and phases of every word (the paper's full form; here all words share them, one of its
ways to save parameters); the complex-valued layers of the paper's networks, which would carry both planes through the
whole model: here one real map joins them after the embeddings.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.encodings.waves import frequencies


def oracle(x_BTC: Array, pos_BT: Array, *, params: Mapping[str, Array], hidden: int) -> Array:
    """r exp(i (w p + theta)) in complex numbers, then its real and its imaginary part."""
    assert params["frequency"].shape == params["phase"].shape == (hidden,)
    wave_BTC = x_BTC * np.exp(1j * params["phase"]) * np.exp(1j * (pos_BT[..., None] * params["frequency"]))
    return np.concatenate([wave_BTC.real, wave_BTC.imag], axis=-1)


@register(
    "complex",
    cases=[{"hidden": 20}, {"hidden": 7}],
    source="Wang et al. 2020, arXiv:1912.12333, section 2",
    embed=oracle,
)
class Complex(Encoding):
    """Turns embeddings x into [x cos(w p + theta), x sin(w p + theta)]; w and theta are learned per channel.

    ``frequency`` (radians a position) and ``phase`` (radians) are [hidden]; frequencies start as the sinusoids' of
    Vaswani et al., phases at 0. The embeddings become twice as wide. Takes any length; the angle is float32 or wider.
    """

    shift_invariant = False
    position_parameters = ("frequency", "phase")

    def __init__(self, *, hidden: Size) -> None:
        super().__init__(hidden=hidden)
        self.hidden = hidden
        self.frequency = nn.Parameter(torch.tensor([f for f in frequencies(hidden) for _ in range(2)][:hidden]))
        self.phase = nn.Parameter(torch.zeros(hidden))

    @property
    def added_width(self) -> int:
        return self.hidden

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """[B, T, hidden] -> [B, T, 2 hidden]: the real plane, then the imaginary one."""
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        angle_BTC = positions.ids_BT[..., None].to(wide) * self.frequency.to(wide) + self.phase.to(wide)
        return torch.cat([x_BTC * angle_BTC.cos(), x_BTC * angle_BTC.sin()], -1).to(x_BTC.dtype)

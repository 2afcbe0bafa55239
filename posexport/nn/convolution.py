"""A convolution over tokens, added to the output of a layer (DeBERTa 2).

He et al., "DeBERTa" (arXiv:2006.03654), the code released with version 2: of the embeddings, after the first layer.

Shape letters: B batch, T tokens, C model size.
"""

from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.nn.activations import activation
from posexport.nn.norms import NormConfig, normalisation


class TokenConvolution(nn.Module):
    """``norm(y + act(conv(x)))``; tokens that the mask leaves out are zeros to it."""

    def __init__(self, hidden: int, norm: NormConfig, *, kernel: int, groups: int, activation_name: str) -> None:
        super().__init__()
        if kernel % 2 == 0 or hidden % groups:
            raise PosexportError(
                f"a convolution over tokens needs an odd kernel and groups that divide {hidden} channels, got kernel = "
                f"{kernel}, groups = {groups}"
            )
        self.conv = nn.Conv1d(hidden, hidden, kernel, padding=kernel // 2, groups=groups)
        self.activation = activation(activation_name)
        self.norm = normalisation(norm, hidden)

    def forward(self, x_BTC: Tensor, y_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
        """``x``: what the layer read, ``y``: what it gave."""
        if mask_BT is not None:
            x_BTC = x_BTC * (mask_BT != 0)[:, :, None].to(x_BTC.dtype)
        summed: Tensor = self.norm(y_BTC + self.activation(self.conv(x_BTC.mT).mT))
        return summed

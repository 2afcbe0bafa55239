"""An encoding of your own, registered and converted: positions as a ramp over the channels.

Usage: python examples/own_encoding.py [BUNDLE]

The oracle is the same formula in NumPy; posexport's tests of encodings would compare the two.
"""

import sys

import numpy as np
import torch
from torch import Tensor

import posexport
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions


def oracle(x_BTC: Array, pos_BT: Array, **_: object) -> Array:
    return x_BTC + 0.01 * pos_BT[..., None] * np.arange(x_BTC.shape[-1])


@register("example-ramp", cases=[{}], source="examples/own_encoding.py", embed=oracle)
class Ramp(Encoding):
    """Adds a hundredth of the position times the channel to the embeddings."""

    shift_invariant = False  # moving all positions changes the result

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        channel_C = torch.arange(x_BTC.shape[-1])
        return x_BTC + 0.01 * (positions.ids_BT[..., None] * channel_C).to(x_BTC.dtype)


def main(bundle: str = "ramp") -> None:
    conversion = posexport.convert("encoder-example-ramp", bundle, settings={"layers": 2}, lengths=[1, 17, 65])
    print(conversion.to_text())


if __name__ == "__main__":
    main(*sys.argv[1:])

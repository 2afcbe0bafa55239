"""Rotary embedding: rotate pairs of channels of queries or keys, by cosines and sines that are inputs.

Su et al., "RoFormer" (arXiv:2104.09864), section 3.2.2, equation 34. While ``torch.onnx.export`` traces, it is one node
of domain ``posexport``; a lowering writes its body (`posexport.graph.lowering.rotation`). Not done here: the angles,
which the encoding computes once for all layers.

The two channels of pair i: ``half`` (GPT-NeoX, Llama): i and i + dim / 2; ``interleaved`` (RoFormer, GPT-J): 2i and
2i + 1. Shape letters: B batch, H heads, T tokens, D head size, F pairs of channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, get_args

import numpy as np

from posexport.graph.ops.operator import Array
from posexport.graph.ops.spec import NodeSpec, emit
from posexport.graph.ops.tensor import Tensor
from posexport.graph.ops.tracing import traced_as

Layout = Literal["half", "interleaved"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def oracle(x: Array, cos: Array, sin: Array, *, layout: Layout) -> Array:
    """One pair at a time, as complex numbers: x [B, H, T, D], cos and sin [B or 1, 1, T, F] -> [B, H, T, D]."""
    out = np.array(x)
    pairs = cos.shape[-1]
    for i in range(pairs):
        a, b = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        rotated = (x[..., a] + 1j * x[..., b]) * (cos[..., i] + 1j * sin[..., i])
        out[..., a], out[..., b] = rotated.real, rotated.imag
    return out


@dataclass(frozen=True)
class RotationSpec(NodeSpec):
    """Which rotation a node computes.

    It reads ``x [B, H, T, D]``, ``cos`` and ``sin [B or 1, 1, T, F]`` (float32 or wider, times whatever the encoding
    scales queries or keys by) and returns ``rotated``, x with pairs of its first 2F channels rotated, in x's type.

    Its other attributes: ``heads``: H. ``dim``: 2F. ``parts``: sizes to split a head into: the first channels
    of all pairs and the second (``half``) or the pairs (``interleaved``), then the rest. ``split_heads``:
    the shape that splits packed heads.
    """

    op_type: ClassVar[str] = "Rotation"

    layout: Layout = "half"
    #: channels from 2F on are not rotated
    partial: bool = False
    #: cosines and sines have a batch of 1, and are broadcast over the batch of x
    shared: bool = False
    #: x and ``rotated`` have packed heads, [B, T, H D]
    packed: bool = False
    #: cosines and sines have no axis of heads, [B or 1, T, F]
    squeezed: bool = False

    @property
    def name(self) -> str:
        """For example ``SharedPartialHalfRotation``."""
        words = {"Squeezed": self.squeezed, "Packed": self.packed, "Shared": self.shared, "Partial": self.partial}
        return "".join([*(word for word, on in words.items() if on), self.layout.capitalize(), "Rotation"])

    @property
    def inputs(self) -> list[str]:
        return ["x", "cos", "sin"]

    @property
    def outputs(self) -> list[str]:
        return ["rotated"]

    @property
    def head_shapes(self) -> dict[str, str]:
        return {"x": "split_heads"} if self.packed else {}

    @property
    def split(self) -> Self:
        return replace(self, packed=False)


def _node(x_BHTD: Tensor, cos_B1TF: Tensor, sin_B1TF: Tensor, layout: Layout) -> Tensor:
    size, pairs = x_BHTD.shape[-1], cos_B1TF.shape[-1]
    partial = 2 * pairs < size
    # a batch that the trace does not know is never treated as 1
    spec = RotationSpec(layout, partial, isinstance(cos_B1TF.shape[0], int) and cos_B1TF.shape[0] == 1)
    attributes: dict[str, int | Sequence[int]] = {}
    if partial:
        rotated = [pairs, pairs] if layout == "half" else [2 * pairs]
        attributes = {"heads": x_BHTD.shape[1], "dim": 2 * pairs, "parts": [*rotated, size - 2 * pairs]}
    return emit(spec, (x_BHTD, cos_B1TF, sin_B1TF), like=x_BHTD, shape=x_BHTD.shape, **attributes)


@traced_as(_node)
def rotate(x_BHTD: Tensor, cos_B1TF: Tensor, sin_B1TF: Tensor, layout: Layout) -> Tensor:
    """Pair by pair: ``(a + ib) (cos + i sin)``, computed in the type of the cosines and cast to ``x_BHTD``'s."""
    import torch

    pairs = cos_B1TF.shape[-1]
    wide = x_BHTD[..., : 2 * pairs].to(cos_B1TF.dtype)
    if layout == "half":
        first, second = wide[..., :pairs], wide[..., pairs:]
    else:
        first, second = wide[..., 0::2], wide[..., 1::2]
    both = (first * cos_B1TF - second * sin_B1TF, second * cos_B1TF + first * sin_B1TF)
    rotated = (torch.cat(both, -1) if layout == "half" else torch.stack(both, -1).flatten(-2)).to(x_BHTD.dtype)
    return rotated if 2 * pairs == x_BHTD.shape[-1] else torch.cat((rotated, x_BHTD[..., 2 * pairs :]), -1)

"""Sines and cosines of positions at many frequencies, and their relative position projection.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.5; Dai et al., "Transformer-XL"
(arXiv:1901.02860), section 3.3, ``W R[i - j]``. While ``torch.onnx.export`` traces, the projection is one node of
domain ``posexport``, and a lowering writes its body (`posexport.graph.lowering.waves`): computed in every call it would
add two products to a layer's twelve, for values that depend on no input.

``half``: all sines before all cosines; ``interleaved``: in turn. Shape letters: H heads, W distances, D head size,
C channels of the waves, F frequencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from posexport.graph.ops.operator import Array
from posexport.graph.ops.spec import NodeSpec, emit
from posexport.graph.ops.tensor import Tensor
from posexport.graph.ops.tracing import traced_as

if TYPE_CHECKING:
    import torch

Layout = Literal["interleaved", "half"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def oracle(distances: Array, frequencies: Array, weight: Array, *, heads: int, layout: Layout) -> Array:
    """One channel of the waves at a time: distances [W], frequencies [F], weight [H D, C] -> [H, W, D]."""
    channels = weight.shape[1]
    out = np.zeros((len(distances), len(weight)))
    for c in range(channels):
        i, cosine = divmod(c, 2) if layout == "interleaved" else (c % len(frequencies), c // len(frequencies))
        out += np.outer((np.cos if cosine else np.sin)(distances * frequencies[i]), weight[:, c])
    return out.reshape(len(distances), heads, -1).transpose(1, 0, 2)


def waves(positions: Tensor, frequencies: Sequence[float], size: int, layout: Layout, dtype: "torch.dtype") -> Tensor:
    """[...] positions -> [..., size], in ``dtype`` or float32, whichever is wider; an odd size has one sine more.

    ``positions`` are integers, or real numbers of that width: nothing is rounded before the product with a frequency.
    """
    import torch

    wide = torch.promote_types(dtype, torch.float32)
    frequency_F = torch.tensor(frequencies, dtype=wide, device=positions.device)
    angle = positions[..., None].to(wide) * frequency_F
    both = (angle.sin(), angle.cos())
    features = torch.stack(both, -1).flatten(-2) if layout == "interleaved" else torch.cat(both, -1)
    return features[..., :size]


@dataclass(frozen=True)
class ProjectionSpec(NodeSpec):
    """Which relative position projection a node computes.

    It reads ``distances [W]`` (int64), ``frequencies [F]`` (float32 or wider) and ``weight [H D, C]``, and returns
    ``vectors [H, W, D]``, in the type of ``weight``. Its other attribute is ``split_heads``, the shape [-1, H, D].
    """

    op_type: ClassVar[str] = "ProjectedWaves"

    layout: Layout = "interleaved"
    #: a further input ``table`` has the vectors of all likely distances (`posexport.graph.lowering.waves.tabulated`)
    tabulated: bool = False
    #: the table has all possible distances, since they are clipped
    bounded: bool = False

    @property
    def name(self) -> str:
        """For example ``HalfProjectedWaves``."""
        return f"{'Bounded' * self.bounded}{'Tabulated' * self.tabulated}{self.layout.capitalize()}ProjectedWaves"

    @property
    def inputs(self) -> list[str]:
        return ["distances", "frequencies", "weight", *["table"] * self.tabulated]

    @property
    def outputs(self) -> list[str]:
        return ["vectors"]


def _node(distance_W: Tensor, frequencies: Sequence[float], weight: Tensor, *, heads: int, layout: Layout) -> Tensor:
    import torch

    split_heads = [-1, heads, weight.shape[0] // heads]
    wide = torch.promote_types(weight.dtype, torch.float32)
    frequency_F = torch.tensor(frequencies, dtype=wide, device=weight.device)
    shape = (heads, distance_W.shape[0], split_heads[-1])
    spec = ProjectionSpec(layout)
    return emit(spec, (distance_W, frequency_F, weight), like=weight, shape=shape, split_heads=split_heads)


@traced_as(_node)
def project(distance_W: Tensor, frequencies: Sequence[float], weight: Tensor, *, heads: int, layout: Layout) -> Tensor:
    """``weight [H D, C]`` times the waves of ``distance_W``: [H, W, D]."""
    from torch import nn

    wave_WC = waves(distance_W, frequencies, weight.shape[1], layout, weight.dtype).to(weight.dtype)
    return nn.functional.linear(wave_WC, weight).reshape(-1, heads, weight.shape[0] // heads).transpose(0, 1)

"""How libraries store a linear layer's weight in 4 bits. Shape letters: N outputs, K inputs, G groups of inputs.

An int32 holds eight numbers of 4 bits, the first in its low bits. Facts from the libraries' code: AutoGPTQ 0.7
(``nn_modules/qlinear``), AutoAWQ 0.2 (``utils/packing_utils.py``), compressed-tensors 0.20
(``compressors/pack_quantized``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

#: the place of each of eight consecutive numbers in an int32 of AutoAWQ
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
#: 0 in the middle of 16 numbers
MIDDLE = 8

Read = Callable[[str], Tensor]
Shapes = Mapping[str, list[int]]


@dataclass(frozen=True)
class Packed:
    """A weight: (whole - zeros) * scales.

    Attributes:
        whole: uint8 [N, K], 0 to 15.
        scales: float32 [N, G].
        zeros: uint8 [N, G], the number that means 0.
        groups: int64 [K], the group of each input.
    """

    whole: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor

    @property
    def order(self) -> Tensor | None:
        """int64 [K]: the inputs in an order in which groups are blocks of one size; None: there is none.

        GPTQ's activation order (``desc_act``) scatters groups over the inputs.
        """
        k, count = len(self.groups), self.scales.shape[1]
        order = self.groups.argsort(stable=True)
        fits = k % count == 0 and torch.equal(self.groups[order], torch.arange(k) // (k // count))
        return order if fits else None

    def real(self) -> Tensor:
        """The weight in float32, [N, K]. The products are exact where scales have 16 bits."""
        whole = self.whole.to(torch.float32)
        whole -= self.zeros.to(torch.float32)[:, self.groups]
        whole *= self.scales[:, self.groups]
        return whole


class Layout(Protocol):
    """A library's tensors for a linear layer. ``tensors``: the ends of their names; the first is always present."""

    tensors: ClassVar[tuple[str, ...]]

    def shape(self, shapes: Shapes) -> list[int]:
        """[N, K], from the shapes of its tensors by the ends of their names."""
        ...

    def read(self, read: Read, shapes: Shapes) -> Packed:
        """The weight; ``read`` gives a tensor by the end of its name."""
        ...


@dataclass(frozen=True)
class GPTQ:
    """AutoGPTQ's and GPTQModel's: numbers along the inputs, zero points along the outputs.

    ``offset``: what the file's zero points are less than the real ones, 1 but in the format ``gptq_v2``.
    """

    group_size: int
    offset: int = 1
    tensors: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")

    def shape(self, shapes: Shapes) -> list[int]:
        words, outputs = shapes["qweight"]
        return [outputs, 8 * words]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        outputs, inputs = self.shape(shapes)
        zeros = unpacked(read("qzeros"))[:, :outputs] + self.offset & 15
        return Packed(
            unpacked(read("qweight").T),
            read("scales").float().T.contiguous(),
            zeros.T.contiguous(),
            read("g_idx").long() if "g_idx" in shapes else _groups(inputs, self.group_size),
        )


@dataclass(frozen=True)
class AWQ:
    """AutoAWQ's ``gemm``: numbers and zero points along the outputs, eight of them interleaved."""

    group_size: int
    tensors: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")

    def shape(self, shapes: Shapes) -> list[int]:
        inputs, words = shapes["qweight"]
        return [8 * words, inputs]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        _, inputs = self.shape(shapes)
        whole, zeros = (_in_order(unpacked(read(name))).T.contiguous() for name in ("qweight", "qzeros"))
        return Packed(whole, read("scales").float().T.contiguous(), zeros, _groups(inputs, self.group_size))


@dataclass(frozen=True)
class CompressedTensors:
    """The format ``pack-quantized``: numbers along the inputs, zero points, if any, along the outputs."""

    group_size: int
    tensors: ClassVar[tuple[str, ...]] = (
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
    )

    def shape(self, shapes: Shapes) -> list[int]:
        outputs, words = shapes["weight_packed"]
        return [outputs, 8 * words]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        outputs, inputs = self.shape(shapes)
        scales = read("weight_scale").float()
        zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8)
        if "weight_zero_point" in shapes:
            zeros = unpacked(read("weight_zero_point").T)[:, :outputs].T.contiguous()
        groups = read("weight_g_idx").long() if "weight_g_idx" in shapes else _groups(inputs, self.group_size)
        return Packed(unpacked(read("weight_packed")), scales, zeros, groups)


def unpacked(words: Tensor) -> Tensor:
    """uint8 [rows, 8 * columns] of int32 [rows, columns]."""
    as_bytes = words.contiguous().view(torch.uint8)
    return torch.stack((as_bytes & 15, as_bytes >> 4), -1).flatten(1)


def _in_order(numbers: Tensor) -> Tensor:
    """[rows, columns] as they were before AutoAWQ packed them."""
    return numbers.reshape(len(numbers), -1, 8)[..., list(_AWQ_PLACES)].flatten(1)


def _groups(inputs: int, size: int) -> Tensor:
    """The group of each input, where groups are consecutive; ``size`` -1: one group."""
    return torch.arange(inputs) // (inputs if size < 0 else size)

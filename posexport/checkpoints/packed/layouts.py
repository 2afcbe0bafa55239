"""How libraries store a linear layer's weight in 4 bits. Shape letters: N outputs, K inputs, G groups of inputs.

An int32 holds eight numbers of 4 bits, the first in its low bits. Facts from the libraries' code: AutoGPTQ 0.7
(``nn_modules/qlinear``), AutoAWQ 0.2 (``utils/packing_utils.py``), compressed-tensors 0.20
(``compressors/pack_quantized``), bitsandbytes 0.50 (``functional.QuantState``).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from posexport.errors import PosexportError

#: the place of each of eight consecutive numbers in an int32 of AutoAWQ
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
#: inputs that may share a scale of NF4
NF4_SIZES = (32, 64, 128)
#: 0 in the middle of 16 numbers
MIDDLE = 8

Read = Callable[[str], Tensor]
Shapes = Mapping[str, list[int]]


@dataclass(frozen=True)
class Packed:
    """A weight: (whole - zeros) * scales, or codes[whole] * scales.

    Attributes:
        whole: uint8 [N, K], 0 to 15.
        scales: float32 [N, G].
        zeros: uint8 [N, G], the number that means 0.
        groups: int64 [K], the group of each input.
        codes: float32 [16], the value of each number; None: its distance from ``zeros``.
    """

    whole: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor
    codes: Tensor | None = None

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
        if self.codes is None:
            whole = self.whole.to(torch.float32)
            whole -= self.zeros.to(torch.float32)[:, self.groups]
        else:
            whole = self.codes[self.whole.int()]
        whole *= self.scales[:, self.groups]
        return whole


class Layout(Protocol):
    """A library's tensors for a linear layer. ``tensors``: the ends of their names; the first is always present."""

    tensors: ClassVar[tuple[str, ...]]

    def shape(self, read: Read, shapes: Shapes) -> list[int]:
        """[N, K], from the shapes of its tensors by the ends of their names, or from what a tensor says."""
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

    def shape(self, read: Read, shapes: Shapes) -> list[int]:
        words, outputs = shapes["qweight"]
        return [outputs, 8 * words]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        outputs, inputs = self.shape(read, shapes)
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

    def shape(self, read: Read, shapes: Shapes) -> list[int]:
        inputs, words = shapes["qweight"]
        return [8 * words, inputs]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        _, inputs = self.shape(read, shapes)
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

    def shape(self, read: Read, shapes: Shapes) -> list[int]:
        outputs, words = shapes["weight_packed"]
        return [outputs, 8 * words]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        outputs, inputs = self.shape(read, shapes)
        scales = read("weight_scale").float()
        zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8)
        if "weight_zero_point" in shapes:
            zeros = unpacked(read("weight_zero_point").T)[:, :outputs].T.contiguous()
        groups = read("weight_g_idx").long() if "weight_g_idx" in shapes else _groups(inputs, self.group_size)
        return Packed(unpacked(read("weight_packed")), scales, zeros, groups)


#: the values of bitsandbytes' NormalFloat4: quantiles of a normal distribution (Dettmers et al., arXiv:2305.14314)
NF4_CODES = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]


@dataclass(frozen=True)
class NF4:
    """bitsandbytes' ``Linear4bit``: the rows one after another, two numbers in a byte, the first in its high bits.

    Scales may have 8 bits and scales themselves (double quantization). bitsandbytes rounds products to the type of the
    original weights, float16 or bfloat16; here they have float32.
    """

    tensors: ClassVar[tuple[str, ...]] = (
        "weight.quant_state.bitsandbytes__nf4",
        "weight",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
    )

    def shape(self, read: Read, shapes: Shapes) -> list[int]:
        outputs, inputs = self._state(read)["shape"]
        return [outputs, inputs]

    def read(self, read: Read, shapes: Shapes) -> Packed:
        state, (outputs, inputs) = self._state(read), self.shape(read, shapes)
        size = state["blocksize"]
        if inputs % size or size not in NF4_SIZES:
            raise PosexportError(
                f"a weight of NF4 with {inputs} inputs has blocks of {size}; a row must have whole blocks of "
                f"{', '.join(map(str, NF4_SIZES))}: convert the checkpoint that it was made from"
            )
        if read("weight.quant_map").tolist() != torch.tensor(NF4_CODES).tolist():
            raise PosexportError("a weight has a quant_map that is not that of NF4; save it again with bitsandbytes")
        scales = read("weight.absmax")
        if "nested_blocksize" in state:
            codes, of_scales = read("weight.nested_quant_map"), read("weight.nested_absmax")
            wide = of_scales.repeat_interleave(state["nested_blocksize"])[: len(scales)]
            scales = codes[scales.int()] * wide + state["nested_offset"]
        as_bytes = read("weight").reshape(outputs, -1)
        whole = torch.stack((as_bytes >> 4, as_bytes & 15), -1).flatten(1)
        scales = scales.float().reshape(outputs, -1)
        zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8)
        return Packed(whole, scales, zeros, _groups(inputs, size), torch.tensor(NF4_CODES))

    def _state(self, read: Read) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(read("weight.quant_state.bitsandbytes__nf4").numpy().tobytes())
        return state


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

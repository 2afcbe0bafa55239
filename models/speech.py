"""Raw samples in, a hidden state for every frame out: a stack of convolutions before `posexport.models.audio`.

Baevski et al., "wav2vec 2.0" (arXiv:2006.11477), section 2, with the two kinds of normalisation that were released:
over time after the first convolution (``group``), or over channels after each (``layer``).

Shape letters: B batch, N samples, T frames, F features (channels of the last convolution).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.sizes import samples
from posexport.base.spec import BATCH, FRAMES, SEQUENCE, InputSpec, LengthContract, OutputSpec, ProofPlan
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.audio import AudioEncoder
from posexport.models.conformer import ChannelNorm
from posexport.models.definition import Definition, limits_of
from posexport.nn.feed_forward import activation
from posexport.nn.heads import Head

#: frame counts of the proof, in addition to the encoding's
_FRAMES = (1, 2, 17, 63, 64, 65, 257)
_TRACED_FRAMES = 11


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The convolutions in turn: how many channels each gives, its kernel and its stride."""

    channels: tuple[int, ...] = (24, 24, 24)
    kernels: tuple[int, ...] = (10, 3, 2)
    strides: tuple[int, ...] = (5, 2, 2)
    norm: Literal["group", "layer"] = "layer"
    bias: bool = False
    activation: str = "gelu"

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides) >= 1:
            raise PosexportError(
                f"a stack needs as many kernels and strides as channels, got {len(self.channels)} channels, "
                f"{len(self.kernels)} kernels, {len(self.strides)} strides"
            )

    @property
    def steps(self) -> list[tuple[int, int]]:
        return list(zip(self.kernels, self.strides, strict=True))


class StackLayer(nn.Module):
    """A convolution, a normalisation (or none) and an activation: ``x_BCN`` to fewer samples."""

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        before = config.channels[index - 1] if index else 1
        after, bias = config.channels[index], config.bias
        self.convolution = nn.Conv1d(before, after, config.kernels[index], config.strides[index], bias=bias)
        self.norm: nn.Module | None = None
        if config.norm == "layer":
            self.norm = ChannelNorm(after)
        elif index == 0:
            self.norm = nn.GroupNorm(after, after)
        self.activation = activation(config.activation)

    def forward(self, x_BCN: Tensor) -> Tensor:
        x_BCN = self.convolution(x_BCN)
        return self.activation(x_BCN if self.norm is None else self.norm(x_BCN))


class SpeechModel(Definition):
    """Convolutions, an encoder of frames, a head. Samples are padded on the right only."""

    ordered = True

    def __init__(self, stack: StackConfig, encoder: AudioEncoder, head: Head) -> None:
        super().__init__()
        if encoder.config.channels != stack.channels[-1]:
            raise PosexportError(
                f"the encoder reads {encoder.config.channels} channels, the last convolution gives {stack.channels[-1]}"
            )
        self.config = stack
        self.stack = nn.ModuleList(StackLayer(stack, index) for index in range(len(stack.channels)))
        self.encoder = encoder
        self.head = head
        self.reads_first_token = head.reads_first_token

    @property
    def encoding(self) -> Encoding:
        return self.encoder.encoding

    @property
    def shift_invariant(self) -> bool:
        """Nothing is promised: a shift of the samples is none of the frames, and the left is never padded."""
        return False

    @property
    def padding_invariant(self) -> bool:
        """The encoding's, where padded frames stay out and no normalisation runs over time."""
        return self.encoding.padding_invariant and not self.encoder.leaks and self.config.norm == "layer"

    @property
    def limits(self) -> LengthContract:
        """The limits of the input, in samples."""
        limits, steps = limits_of(self.encoding), self.config.steps

        def longest(frames: int | None) -> int | None:
            return None if frames is None else samples(frames + 1, steps) - 1

        return msgspec.structs.replace(
            limits,
            min_length=samples(1, steps),
            trained_length=longest(limits.trained_length),
            max_length=longest(limits.max_length),
            boundaries=[],
            paddings=["right", "ragged-right"],
            convolutions=steps,
        )

    @property
    def plan(self) -> ProofPlan:
        """The shortest and the longest inputs that give each number of frames to prove it at, in turn."""
        limits, steps = limits_of(self.encoding), self.config.steps
        around = {boundary + step for boundary in limits.boundaries for step in (-1, 0, 1)}
        counts = sorted(count for count in {*_FRAMES, *around} if count >= 1)
        lengths = [
            samples(count + 1, steps) - 1 if place % 2 else samples(count, steps)
            for place, count in enumerate(counts)
            if limits.max_length is None or count <= limits.max_length
        ]
        return ProofPlan(proof_lengths=lengths, trace_sizes={SEQUENCE: samples(_TRACED_FRAMES, steps)})

    @property
    def inputs(self) -> list[InputSpec]:
        axes: list[str | int] = [BATCH, SEQUENCE]
        return [
            InputSpec(name="input_values", dtype=MODEL_DTYPE.name, axes=axes, role="values"),
            InputSpec(name="attention_mask", dtype="int64", axes=axes, role="mask"),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [
            OutputSpec(name=out.name, axes=[FRAMES if axis == SEQUENCE else axis for axis in out.axes])
            for out in self.head.outputs
        ]

    def forward(self, input_values: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        x_BCN = input_values[:, None]
        for layer in self.stack:
            x_BCN = layer(x_BCN)
        features_BTF = x_BCN.mT
        mask_BT = None if attention_mask is None else frame_mask(attention_mask, self.config.steps, features_BTF)
        x_BTC = self.encoder(features_BTF, mask_BT)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, mask_BT)
        return outputs


def frame_mask(mask_BN: Tensor, steps: Sequence[tuple[int, int]], frames_BTF: Tensor) -> Tensor:
    """The mask of frames, int64 [B, T]: as many are real as the real samples would give without padding."""
    count_B = (mask_BN != 0).sum(1)
    for kernel, stride in steps:
        # below 1 where there are too few, however a division rounds
        count_B = (count_B - kernel + stride) // stride
    place_T = torch.arange(frames_BTF.shape[1], device=mask_BN.device)
    return (place_T[None, :] < count_B[:, None]).to(torch.int64)

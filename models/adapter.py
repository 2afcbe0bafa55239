"""Layers after an encoder of frames that reduce the number of frames: each a convolution with a stride, and attention.

As Wav2Vec2-BERT has them (Seamless Communication, arXiv:2312.05187, section 3.1, "length adaptor").

Shape letters: B batch, T frames, C model size.
"""

from dataclasses import dataclass, replace

import msgspec
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Count, Size
from posexport.base.sizes import samples
from posexport.base.spec import FRAMES, SEQUENCE, LengthContract, OutputSpec, ProofPlan
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.audio import AudioConfig, AudioEncoder, AudioModel
from posexport.models.layer import Attention
from posexport.models.speech import frame_mask
from posexport.nn.attention import additive
from posexport.nn.config import Config
from posexport.nn.feed_forward import FeedForward
from posexport.nn.heads import Head


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Config):
    """``hidden``: channels of the adapter; 0: no projection, the encoder's.

    ``expanded``: the activation of a feed-forward before it, added with factor 1/2; None: there is none.
    """

    layers: Count = 1
    kernel: Size = 3
    stride: Size = 2
    hidden: Count = 0
    activation: str = "relu"
    expanded: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel // 2 != self.stride // 2:
            raise PosexportError(
                f"kernel // 2 must be stride // 2, by which released code pads and counts frames; got kernel="
                f"{self.kernel}, stride={self.stride}"
            )

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Kernel minus padding on both sides, and stride, of each layer."""
        return [(self.kernel - 2 * (self.stride // 2), self.stride)] * self.layers


class FewerFrames(nn.Module):
    """Normalisation, a convolution with a stride, a gated linear unit."""

    def __init__(self, config: AdapterConfig, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden, eps=eps)
        self.convolution = nn.Conv1d(hidden, 2 * hidden, config.kernel, config.stride, config.stride // 2)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return F.glu(self.convolution(self.norm(x_BTC).mT), 1).mT


class AdapterLayer(nn.Module):
    """Attention without positions over fewer frames, around it and a feed-forward a sum each."""

    def __init__(self, config: AdapterConfig, audio: AudioConfig) -> None:
        super().__init__()
        hidden, layer = audio.hidden, audio.layer
        self.residual = FewerFrames(config, hidden, audio.eps)
        self.fewer = FewerFrames(config, hidden, audio.eps)
        self.attention = Attention(layer.attention, hidden, NoPE())
        self.norm = nn.LayerNorm(hidden, eps=audio.eps)
        self.feedforward = FeedForward(replace(layer.feedforward, activation=config.activation), hidden)

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None, steps: list[tuple[int, int]]) -> Tensor:
        """``mask_BT``: of the encoder's frames, which ``steps`` made these of."""
        residual_BTC, y_BTC = self.residual(x_BTC), self.fewer(x_BTC)
        mask_B11T = None if mask_BT is None else additive(frame_mask(mask_BT, steps, y_BTC), y_BTC)
        positions = Positions.counted(y_BTC.shape[1], y_BTC.device)
        x_BTC = residual_BTC + self.attention(y_BTC, y_BTC, mask_B11T, positions, positions)
        out: Tensor = x_BTC + self.feedforward(self.norm(x_BTC))
        return out


class Adapter(nn.Module):
    """Hidden states [B, T, C] of an encoder to fewer; the layers' attention leaves out what padding made alone."""

    def __init__(self, config: AdapterConfig, audio: AudioConfig) -> None:
        super().__init__()
        self.config = config
        encoder_config = replace(audio, hidden=config.hidden or audio.hidden)
        feedforward = audio.layer.feedforward
        self.expanded = None
        if config.expanded is not None:
            self.expanded = FeedForward(replace(feedforward, activation=config.expanded), audio.hidden)
        self.project = nn.Linear(audio.hidden, encoder_config.hidden) if encoder_config.hidden != audio.hidden else None
        self.norm = (
            nn.LayerNorm(encoder_config.hidden, eps=audio.eps) if encoder_config.hidden != audio.hidden else None
        )
        self.layers = nn.ModuleList(AdapterLayer(config, encoder_config) for _ in range(config.layers))

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> Tensor:
        if self.expanded is not None:
            x_BTC = x_BTC + 0.5 * self.expanded(x_BTC)
        if self.project is not None and self.norm is not None:
            x_BTC = self.norm(self.project(x_BTC))
        for count, layer in enumerate(self.layers, 1):
            x_BTC = layer(x_BTC, mask_BT, self.config.steps[:count])
        return x_BTC


class AdaptedAudio(AudioModel):
    """An encoder of frames, an adapter, a head. Padded frames change real ones, as in the released code."""

    shift_invariant = False
    padding_invariant = False

    def __init__(self, encoder: AudioEncoder, adapter: Adapter, head: Head) -> None:
        super().__init__(encoder, head)
        self.adapter = adapter
        self.ordered = True

    @property
    def limits(self) -> LengthContract:
        """Frames are padded on the right only, where their count tells which are real."""
        return msgspec.structs.replace(
            super().limits, paddings=["right", "ragged-right"], convolutions=self.adapter.config.steps
        )

    @property
    def plan(self) -> ProofPlan:
        sizes = {SEQUENCE: samples(11, self.adapter.config.steps)}
        return msgspec.structs.replace(super().plan, trace_sizes=sizes)

    @property
    def outputs(self) -> list[OutputSpec]:
        return [
            OutputSpec(name=out.name, axes=[FRAMES if axis == SEQUENCE else axis for axis in out.axes])
            for out in super().outputs
        ]

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        x_BTC = self.adapter(self.encoder(input_features, attention_mask), attention_mask)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, None)
        return outputs

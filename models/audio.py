"""Frames of features in, a hidden state for every frame out: plain transformer layers or Conformer blocks.

What WavLM (Chen et al., arXiv:2110.13900), Wav2Vec2-Conformer and Wav2Vec2-BERT (Seamless Communication,
arXiv:2312.05187) have in common once there are frames; `posexport.models.speech` makes frames of raw samples.

Shape letters: B batch, T frames, F features, C model size.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Count, Size
from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.conformer import CausalConvolution, CentredConvolution, ConformerLayer, conformer_layer
from posexport.models.definition import HeadedModel
from posexport.models.layer import EncoderLayer, LayerConfig
from posexport.nn.attention import additive
from posexport.nn.config import Config
from posexport.nn.feed_forward import activation
from posexport.nn.heads import Head

CONVOLUTIONS: dict[str, type[CausalConvolution] | type[CentredConvolution]] = {
    "causal": CausalConvolution,
    "centred": CentredConvolution,
}


@dataclass(frozen=True, kw_only=True)
class AudioConfig(Config):
    """Sizes and arrangement. ``channels``: features of a frame."""

    channels: Size = 80
    hidden: int = 60
    layers: Size = 2
    heads: int = 5
    feedforward: int = 97
    activation: str = "gelu"
    eps: float = 1e-5
    block: Literal["plain", "conformer"] = "plain"
    #: where a plain layer is normalised: after each sum or before each sublayer
    norm: Literal["post", "pre"] = "post"
    #: which frames a Conformer block's convolution sees, and how many
    convolution: Literal["causal", "centred"] = "causal"
    kernel: Size = 31
    #: a Conformer block rotates the attention's input, not queries and keys
    rotates_input: bool = False
    #: eps of the layers, if it is not ``eps``
    layer_eps: float | None = None
    #: a convolution along time in groups of channels, added before the layers; 0: none
    positional_kernel: Count = 0
    positional_groups: Size = 1
    positional_activation: str = "gelu"
    #: a normalisation before the layers, and one after them
    first_norm: bool = False
    final_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.convolution == "centred" and self.kernel % 2 == 0:
            raise PosexportError(f"kernel must be odd to be centred on a frame, got {self.kernel}")
        if self.hidden % self.positional_groups:
            raise PosexportError(
                f"positional_groups must divide hidden, got hidden={self.hidden}, groups={self.positional_groups}"
            )
        if self.rotates_input and self.block != "conformer":
            raise PosexportError("rotates_input is of Conformer blocks: set block=conformer with it")
        assert self.layer

    @property
    def layer(self) -> LayerConfig:
        """The settings of its layers; raises PosexportError where they do not fit."""
        return LayerConfig.of(
            hidden=self.hidden,
            heads=self.heads,
            feedforward=self.feedforward,
            activation=self.activation,
            eps=self.eps if self.layer_eps is None else self.layer_eps,
            norm=self.norm,
        )


class PositionalConvolution(nn.Module):
    """A convolution along time and an activation: positions from the neighbouring frames.

    Baevski et al., "wav2vec 2.0" (arXiv:2006.11477), section 2. An even kernel sees one frame more before than after.
    """

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        kernel = config.positional_kernel
        self.around = (kernel // 2, (kernel - 1) // 2)
        self.convolution = nn.Conv1d(config.hidden, config.hidden, kernel, groups=config.positional_groups)
        self.activation = activation(config.positional_activation)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.activation(self.convolution(F.pad(x_BTC.mT, self.around))).mT


class AudioEncoder(nn.Module):
    """Features [B, T, F] to hidden states [B, T, C]. Padded frames enter the layers as zeros."""

    def __init__(self, config: AudioConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.norm = nn.LayerNorm(config.channels, eps=config.eps)
        self.project = nn.Linear(config.channels, hidden)
        # as in `posexport.models.encoder.Encoder`
        self.shared = None if encoding.per_layer else encoding
        self.join = nn.Linear(hidden + encoding.added_width, hidden) if encoding.added_width else None
        self.positional = PositionalConvolution(config) if config.positional_kernel else None
        self.first_norm = nn.LayerNorm(hidden, eps=config.eps) if config.first_norm else None
        self.layers = nn.ModuleList(self._layer(encoding.in_layer(i), i) for i in range(config.layers))
        self.final_norm = nn.LayerNorm(hidden, eps=config.eps) if config.final_norm else None

    def _layer(self, encoding: Encoding, index: int) -> nn.Module:
        config = self.config
        if config.block == "plain":
            return EncoderLayer(config.layer, encoding, index)
        convolution = CONVOLUTIONS[config.convolution]
        return conformer_layer(config.layer, encoding, convolution, config.kernel, rotates_input=config.rotates_input)

    @property
    def encoding(self) -> Encoding:
        first = self.layers[0]
        assert isinstance(first, EncoderLayer | ConformerLayer)
        return first.attention.encoding

    @property
    def leaks(self) -> bool:
        return self.config.block == "conformer" and CONVOLUTIONS[self.config.convolution].leaks

    def forward(self, features_BTF: Tensor, mask_BT: Tensor | None) -> Tensor:
        x_BTC: Tensor = self.project(self.norm(features_BTF))
        positions = Positions.counted(x_BTC.shape[1], x_BTC.device)
        if self.shared is not None:
            x_BTC = self.shared.embed(x_BTC, positions)
        if self.join is not None:
            x_BTC = self.join(x_BTC)
        real_BT1 = None if mask_BT is None else (mask_BT != 0)[:, :, None]
        if real_BT1 is not None:
            x_BTC = x_BTC.masked_fill(~real_BT1, 0.0)
        if self.positional is not None:
            x_BTC = x_BTC + self.positional(x_BTC)
        if self.first_norm is not None:
            x_BTC = self.first_norm(x_BTC)
        mask_B11T = additive(mask_BT, x_BTC)
        for layer in self.layers:
            if isinstance(layer, ConformerLayer):
                x_BTC = layer(x_BTC, mask_B11T, real_BT1, positions)
            else:
                x_BTC = layer(x_BTC, mask_B11T, positions)
        return x_BTC if self.final_norm is None else self.final_norm(x_BTC)


class AudioModel(HeadedModel):
    """An encoder of frames with a head."""

    encoder: AudioEncoder

    def __init__(self, encoder: AudioEncoder, head: Head) -> None:
        super().__init__(encoder, head)
        self.ordered = encoder.config.block == "conformer" or encoder.config.positional_kernel > 0

    @property
    def encoding(self) -> Encoding:
        return self.encoder.encoding

    @property
    def shift_invariant(self) -> bool:
        """The encoding's, where queries and keys are what it turns, and padded frames stay out."""
        return self.encoding.shift_invariant and not self.encoder.leaks and not self.encoder.config.rotates_input

    @property
    def padding_invariant(self) -> bool:
        """The encoding's, where padded frames stay out."""
        return self.encoding.padding_invariant and not self.encoder.leaks

    @property
    def inputs(self) -> list[InputSpec]:
        """The features of every frame, and which frames are real."""
        axes: list[str | int] = [BATCH, SEQUENCE]
        channels = self.encoder.config.channels
        return [
            InputSpec(name="input_features", dtype=MODEL_DTYPE.name, axes=[*axes, channels], role="values"),
            InputSpec(name="attention_mask", dtype="int64", axes=axes, role="mask"),
        ]

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        x_BTC = self.encoder(input_features, attention_mask)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, attention_mask)
        return outputs

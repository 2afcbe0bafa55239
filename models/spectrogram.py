"""A spectrogram of fixed length in, hidden states out: two convolutions along time before transformer layers.

Radford et al., "Whisper" (arXiv:2212.04356), section 2.2. Every spectrogram is 30 seconds long, silence included, so
that nothing is masked and no length varies.

Shape letters: B batch, M mel frequencies, N frames of the spectrogram, T tokens (N / 2), C model size.
"""

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Size
from posexport.base.spec import BATCH, InputSpec, LengthContract, OutputSpec, ProofPlan
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.models.definition import Definition
from posexport.models.layer import EncoderLayer, LayerConfig
from posexport.nn.config import Config
from posexport.nn.norms import normalisation


@dataclass(frozen=True, kw_only=True)
class SpectrogramConfig(Config):
    """``tokens``: how many the encoder sees, half as many as the spectrogram has frames."""

    frequencies: Size = 80
    tokens: Size = 1500
    layer: LayerConfig = field(default_factory=LayerConfig)
    layers: Size = 2
    final_norm: bool = False


class SpectrogramEncoder(nn.Module):
    """A log-mel spectrogram [B, M, N] to hidden states [B, T, C]."""

    makes_mask = False

    def __init__(self, config: SpectrogramConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        hidden = config.layer.hidden
        self.first = nn.Conv1d(config.frequencies, hidden, 3, padding=1)
        self.second = nn.Conv1d(hidden, hidden, 3, stride=2, padding=1)
        self.shared = None if encoding.per_layer else encoding
        self.layers = nn.ModuleList(EncoderLayer(config.layer, encoding, index) for index in range(config.layers))
        self.final_norm = normalisation(config.layer.norm, hidden) if config.final_norm else None

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of every layer: one and the same where all share it."""
        return [layer.attention.encoding for layer in self.layers if isinstance(layer, EncoderLayer)]

    @property
    def contracts(self) -> list[LengthContract]:
        """None: no length varies, so there is none to refuse."""
        return []

    @property
    def states_axis(self) -> int:
        return self.config.tokens

    @property
    def inputs(self) -> list[InputSpec]:
        axes: list[str | int] = [BATCH, self.config.frequencies, 2 * self.config.tokens]
        return [InputSpec(name="input_features", dtype=MODEL_DTYPE.name, axes=axes, role="values")]

    def forward(self, input_features: Tensor) -> Tensor:
        x_BCN = F.gelu(self.first(input_features))
        x_BTC = F.gelu(self.second(x_BCN)).mT
        positions = Positions.counted(self.config.tokens, x_BTC.device)
        if self.shared is not None:
            x_BTC = self.shared.embed(x_BTC, positions)
        for layer in self.layers:
            x_BTC = layer(x_BTC, None, positions)
        return x_BTC if self.final_norm is None else self.final_norm(x_BTC)


class SpectrogramModel(Definition):
    """A spectrogram encoder without a head."""

    ordered = True

    def __init__(self, encoder: SpectrogramEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def encoding(self) -> Encoding:
        return self.encoder.encodings[0]

    @property
    def shift_invariant(self) -> bool:
        """Nothing is promised: no length varies."""
        return False

    @property
    def limits(self) -> LengthContract:
        return LengthContract()

    @property
    def plan(self) -> ProofPlan:
        return ProofPlan(proof_lengths=[1])

    @property
    def inputs(self) -> list[InputSpec]:
        return self.encoder.inputs

    @property
    def outputs(self) -> list[OutputSpec]:
        config = self.encoder.config
        return [OutputSpec(name="last_hidden_state", axes=[BATCH, config.tokens, config.layer.hidden])]

    def forward(self, input_features: Tensor) -> tuple[Tensor, ...]:
        return (self.encoder(input_features),)

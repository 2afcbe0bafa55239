"""Audio towers of audio-language models: windows of one length to features (Voxtral, arXiv:2507.13264).

Shape letters: B windows, P features of a window, C model size.
"""

from typing import Any

from torch import Tensor

from posexport.base.spec import BATCH, InputSpec
from posexport.checkpoints.config import Config
from posexport.through.inputs import FEATURES
from posexport.through.towers import Tower


class Windows(Tower):
    """Spectrograms of 30 seconds to features, as transformers' ``get_audio_features`` returns them."""

    file, features, token = "audio_encoder.onnx", "audio_features", "audio_token_id"

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.model = model.model

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        """Mel bins, and two frames for every position of the encoder."""
        audio = model.config.audio_config
        axes = [BATCH, audio.num_mel_bins, 2 * audio.max_source_positions]
        return [InputSpec(name=FEATURES, dtype="float32", axes=axes, role="values")]

    def forward(self, input_features: Tensor) -> Tensor:
        features_KC = self.model.get_audio_features(input_features=input_features, return_dict=True).pooler_output
        features_BPC: Tensor = features_KC.reshape(input_features.shape[0], -1, features_KC.shape[-1])
        return features_BPC

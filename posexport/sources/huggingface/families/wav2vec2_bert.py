"""Wav2Vec2-BERT: frames of features, Conformer blocks with clipped distances, projected sinusoids or rotations.

As released, rotations turn the attention's input. Not read: adapters, and the feed-forward before them.
"""

import torch

from posexport.models.audio import AudioEncoder, AudioModel
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families import audio
from posexport.sources.huggingface.plan import Plan, origins_of

_PREFIX = "wav2vec2_bert"


def _build(config: Config, task: str) -> Plan:
    audio.refuse_adapter(config)
    settings = audio.audio_config(
        config,
        "swish",
        channels=config.size("feature_projection_input_dim", 160),
        block="conformer",
        convolution="causal",
        kernel=audio.conformer_kernel(config),
        rotates_input=audio.rotates(config),
    )
    with torch.device("meta"):
        encoding = audio.conformer_encoding(config, settings, "relative_key", clipped=True)
        model = AudioModel(AudioEncoder(settings, encoding), audio.head(config, settings, task))
    layer = audio.CONFORMER_LAYER | {"convolution.depthwise_norm": "conv_module.depthwise_layer_norm"}
    modules = audio.named_projection(_PREFIX) | audio.named_layers(_PREFIX, settings.layers, layer)
    special = audio.named_layers(_PREFIX, settings.layers, audio.CONFORMER_RENAMED)
    return Plan(model, origins_of(model, modules, special))


WAV2VEC2_BERT = audio.audio_family("wav2vec2-bert", _build, _PREFIX)

"""Wav2Vec2-BERT: frames of features, Conformer blocks with clipped distances, projected sinusoids or rotations.

As released, rotations are applied to the attention's input. An adapter after the encoder reduces the number of frames.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import audio
from posexport.checkpoints.mapping import Origin, Plan, in_layers, origin, origins_of
from posexport.errors import PosexportError
from posexport.models.adapter import AdaptedAudio, Adapter, AdapterConfig
from posexport.models.audio import AudioConfig, AudioEncoder, AudioModel

_PREFIX = "wav2vec2_bert"
_FEED_FORWARD = {"inner": "intermediate_dense", "outer": "output_dense"}
#: an adapter layer's parts, below ``adapter.layers.{i}.``, to the checkpoint's
_ADAPTER_LAYER = {
    "residual.norm": "residual_layer_norm",
    "residual.convolution": "residual_conv",
    "fewer.norm": "self_attn_layer_norm",
    "fewer.convolution": "self_attn_conv",
    "attention.query": "self_attn.linear_q",
    "attention.key": "self_attn.linear_k",
    "attention.value": "self_attn.linear_v",
    "attention.output": "self_attn.linear_out",
    "norm": "ffn_layer_norm",
} | {f"feedforward.{ours}": f"ffn.{theirs}" for ours, theirs in _FEED_FORWARD.items()}


def _build(config: Config, task: str) -> Plan:
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
        model = _model(AudioEncoder(settings, encoding), _adapter(config, settings), config, task)
    layer = audio.CONFORMER_LAYER | {"convolution.depthwise_norm": "conv_module.depthwise_layer_norm"}
    modules = audio.named_projection(_PREFIX) | audio.named_layers(_PREFIX, settings.layers, layer)
    if isinstance(model, AdaptedAudio):
        modules |= _named_adapter(len(model.adapter.layers))
    special = audio.named_layers(_PREFIX, settings.layers, audio.CONFORMER_RENAMED)
    return Plan(model, origins_of(model, modules, special))


def _adapter(config: Config, settings: AudioConfig) -> AdapterConfig | None:
    """Returns the configuration of the adapter after the encoder; None: no adapter."""
    expanded = config.flag("use_intermediate_ffn_before_adapter", False)
    if not config.flag("add_adapter", False):
        if expanded:
            raise PosexportError(
                f"{config.label} sets use_intermediate_ffn_before_adapter without add_adapter, which transformers "
                "refuses too; set both, or neither"
            )
        return None
    said = config.values.get("output_hidden_size") is not None
    with config.named_in_errors():
        return AdapterConfig(
            layers=config.size("num_adapter_layers", 1),
            kernel=config.size("adapter_kernel_size", 3),
            stride=config.size("adapter_stride", 2),
            hidden=config.size("output_hidden_size") if said else settings.hidden,
            activation=config.activation("adapter_act", "relu"),
            expanded="relu" if expanded else None,
        )


def _model(encoder: AudioEncoder, adapter: AdapterConfig | None, config: Config, task: str) -> AudioModel:
    if adapter is None:
        return AudioModel(encoder, audio.head(config, encoder.config.hidden, task))
    return AdaptedAudio(encoder, Adapter(adapter, encoder.config), audio.head(config, adapter.hidden, task))


def _named_adapter(layers: int) -> dict[str, Origin]:
    names = {
        "adapter.project": origin(f"{_PREFIX}.adapter.proj"),
        "adapter.norm": origin(f"{_PREFIX}.adapter.proj_layer_norm"),
    }
    for ours, theirs in _FEED_FORWARD.items():
        names[f"adapter.expanded.{ours}"] = origin(f"{_PREFIX}.intermediate_ffn.{theirs}")
    return names | in_layers(layers, "adapter.layers", f"{_PREFIX}.adapter.layers.{{i}}.", _ADAPTER_LAYER)


WAV2VEC2_BERT = audio.audio_family("wav2vec2-bert", _build, _PREFIX)

"""WavLM: convolutions over raw samples, a positional convolution, T5's bias gated for every query and head."""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import audio
from posexport.checkpoints.mapping import Origin, Plan, Reshape, WeightNorm, origin, origins_of
from posexport.encodings.wavlm_gated import WavLMGated
from posexport.errors import PosexportError
from posexport.models.audio import AudioEncoder
from posexport.models.speech import SpeechModel

_PREFIX = "wavlm"
_LAYER = {
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.output": "attention.out_proj",
    "attention.encoding.gate": "attention.gru_rel_pos_linear",
    "attention_residual.norm": "layer_norm",
    "feedforward.inner": "feed_forward.intermediate_dense",
    "feedforward.outer": "feed_forward.output_dense",
    "feedforward_residual.norm": "final_layer_norm",
}


def _build(config: Config, task: str) -> Plan:
    audio.refuse_adapter(config)
    stack = audio.stack(config)
    stable = config.flag("do_stable_layer_norm", False)
    settings = audio.audio_config(
        config,
        "gelu",
        channels=stack.channels[-1],
        norm="pre" if stable else "post",
        first_norm=not stable,
        final_norm=stable,
        positional_kernel=config.size("num_conv_pos_embeddings", 128),
        positional_groups=config.size("num_conv_pos_embedding_groups", 16),
        positional_activation=stack.activation,
    )
    buckets, farthest = config.size("num_buckets", 320), config.size("max_bucket_distance", 800)
    with torch.device("meta"):
        try:
            encoding = WavLMGated(
                heads=settings.heads, head_size=settings.layer.head_size, buckets=buckets, max_distance=farthest
            )
        except PosexportError as err:
            raise PosexportError(
                f"{config.label} says num_buckets = {buckets}, max_bucket_distance = {farthest}: {err}"
            ) from err
        model = SpeechModel(stack, AudioEncoder(settings, encoding), audio.head(config, settings.hidden, task))
    modules = audio.named_stack(_PREFIX, stack) | audio.named_projection(_PREFIX)
    modules |= audio.named_layers(_PREFIX, settings.layers, _LAYER)
    convolution = "encoder.positional.convolution"
    names = {"encoder.first_norm": "layer_norm", "encoder.final_norm": "layer_norm", convolution: "pos_conv_embed.conv"}
    modules |= {path: origin(f"{_PREFIX}.encoder.{stored}") for path, stored in names.items()}
    constant = Origin(("attention.gru_rel_pos_const",), (Reshape((1, settings.heads, 1, 1)),))
    parameters = audio.named_layers(_PREFIX, settings.layers, {"attention.encoding.constant": constant})
    # one table, stored in the first layer
    table = {"attention.encoding.table": "attention.rel_attn_embed.weight"}
    parameters |= audio.named_layers(_PREFIX, 1, table)
    # weight normalisation as PyTorch stores it now, and before
    norms, values = (
        tuple(f"{_PREFIX}.encoder.pos_conv_embed.conv.{name}" for name in (f"parametrizations.weight.original{i}", old))
        for i, old in enumerate(("weight_g", "weight_v"))
    )
    parameters[f"{convolution}.weight"] = Origin(values, (WeightNorm(norms),))
    return Plan(model, origins_of(model, modules, parameters))


WAVLM = audio.audio_family("wavlm", _build, _PREFIX)

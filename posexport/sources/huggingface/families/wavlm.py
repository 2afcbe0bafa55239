"""WavLM: convolutions over raw samples, a positional convolution, T5's bias gated for every query and head."""

import torch

from posexport.encodings.wavlm_gated import WavLMGated
from posexport.errors import PosexportError
from posexport.models.audio import AudioEncoder
from posexport.models.speech import SpeechModel
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families import audio
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan, origins_of

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


def _plan(config: Config, task: str) -> Plan:
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
        model = SpeechModel(stack, AudioEncoder(settings, encoding), audio.head(config, settings, task))
    stems = audio.stack_stems(_PREFIX, stack) | audio.projection_stems(_PREFIX)
    stems |= audio.layer_stems(_PREFIX, settings.layers, _LAYER)
    stems |= {f"encoder.{which}_norm": f"{_PREFIX}.encoder.layer_norm" for which in ("first", "final")}
    convolution, attention = f"{_PREFIX}.encoder.pos_conv_embed.conv", "{below}.attention.{leaf}"
    special = {
        "encoder.positional.convolution.bias": Origin((f"{convolution}.bias",)),
        "encoder.positional.convolution.weight": Origin(
            (f"{convolution}.parametrizations.weight.original1", f"{convolution}.weight_v"),
            gain=(f"{convolution}.parametrizations.weight.original0", f"{convolution}.weight_g"),
        ),
        "encoder.layers.0.attention.encoding.table": Origin(
            (attention.format(below=f"{_PREFIX}.encoder.layers.0", leaf="rel_attn_embed.weight"),)
        ),
    }
    for i in range(settings.layers):
        stored = attention.format(below=f"{_PREFIX}.encoder.layers.{i}", leaf="gru_rel_pos_const")
        special[f"encoder.layers.{i}.attention.encoding.constant"] = Origin((stored,), shape=(1, settings.heads, 1, 1))
    return Plan(model, origins_of(model, stems, special))


WAVLM = OwnFamily(
    model_type="wavlm",
    plan=_plan,
    prefix=_PREFIX,
    roots=audio.ROOTS,
    architectures=audio.ARCHITECTURES,
    other_heads=audio.HEADS,
    beside=audio.BESIDE,
)

"""Wav2Vec2-Conformer: convolutions over raw samples, Conformer blocks with projected sinusoids or rotations.

As released, rotations are applied to the attention's input; the blocks' convolutions do not mask padded frames,
so that padding changes real frames; the blocks' normalisations have an epsilon of 1e-5 whatever
``layer_norm_eps`` says; the weights of a positional convolution are stored and not used.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import audio
from posexport.checkpoints.mapping import Constant, Plan, origin, origins_of
from posexport.encodings.rope.rope import Rope
from posexport.encodings.waves import frequencies
from posexport.models.audio import AudioEncoder
from posexport.models.speech import SpeechModel

_PREFIX = "wav2vec2_conformer"
_NORM = "conv_module.batch_norm"
_RENAMED = audio.CONFORMER_RENAMED | {
    "convolution.depthwise_norm.mean": f"{_NORM}.running_mean",
    "convolution.depthwise_norm.variance": f"{_NORM}.running_var",
}


def _build(config: Config, task: str) -> Plan:
    audio.refuse_adapter(config)
    stack = audio.stack(config)
    settings = audio.audio_config(
        config,
        "gelu",
        channels=stack.channels[-1],
        block="conformer",
        convolution="centred",
        kernel=audio.conformer_kernel(config),
        rotates_input=audio.rotates(config),
        layer_eps=1e-5,
        final_norm=True,
    )
    with torch.device("meta"):
        encoding = audio.conformer_encoding(config, settings, "relative", clipped=False)
        model = SpeechModel(stack, AudioEncoder(settings, encoding), audio.head(config, settings.hidden, task))
    layer = audio.CONFORMER_LAYER | {"convolution.depthwise_norm": _NORM}
    modules = audio.named_stack(_PREFIX, stack) | audio.named_projection(_PREFIX)
    modules |= audio.named_layers(_PREFIX, settings.layers, layer)
    modules["encoder.final_norm"] = origin(f"{_PREFIX}.encoder.layer_norm")
    constants = {}
    if isinstance(encoding, Rope):
        base = float(encoding.parameters_given["base"] or 0)
        values = torch.tensor(frequencies(settings.layer.head_size, base), dtype=torch.float64)
        constants = {f"{_PREFIX}.encoder.embed_positions.inv_freq": Constant(values, rtol=0.01)}
    return Plan(
        model,
        origins_of(model, modules, audio.named_layers(_PREFIX, settings.layers, _RENAMED)),
        constants=constants,
        unread=tuple(f"{_PREFIX}.encoder.layers.{i}.{_NORM}.num_batches_tracked" for i in range(settings.layers)),
    )


WAV2VEC2_CONFORMER = audio.audio_family(
    "wav2vec2-conformer", _build, _PREFIX, audio.BESIDE | {"encoder.pos_conv_embed.": None}
)

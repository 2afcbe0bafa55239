"""What WavLM, Wav2Vec2-Conformer and Wav2Vec2-BERT have in common: their config.json and the names of their weights."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import NameMap, Origin, Plan, in_layers, origin
from posexport.encodings.conformer import Conformer
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.encodings.rope.rope import Rope
from posexport.encodings.wav2vec2_bert import Wav2Vec2Bert
from posexport.errors import PosexportError
from posexport.models.audio import AudioConfig
from posexport.models.speech import StackConfig
from posexport.nn.heads import Features, Head, TokenClassification

ARCHITECTURES = {"ForCTC": "ctc", "ForPreTraining": "features", "Model": "features"}
HEADS = {
    "lm_head.": "the head for CTC",
    "quantizer.": "the quantiser of pre-training",
    "project_q.": "the quantiser of pre-training",
    "project_hid.": "the quantiser of pre-training",
    "layer_weights": "the weighted sum of layers",
    "projector.": "a classification head",
    "classifier.": "a classification head",
}
ROOTS = ("feature_extractor.", "feature_projection.", "encoder.", "masked_spec_embed", "adapter.", "intermediate_ffn.")
#: embedding that replaces masked frames during training
BESIDE: dict[str, str | None] = {"masked_spec_embed": None}

#: a Conformer block's parts, below ``encoder.layers.{i}.``, to the checkpoint's
CONFORMER_LAYER = {
    "first_norm": "ffn1_layer_norm",
    "first.inner": "ffn1.intermediate_dense",
    "first.outer": "ffn1.output_dense",
    "attention_norm": "self_attn_layer_norm",
    "attention.query": "self_attn.linear_q",
    "attention.key": "self_attn.linear_k",
    "attention.value": "self_attn.linear_v",
    "attention.output": "self_attn.linear_out",
    "attention.encoding.project": "self_attn.linear_pos",
    "convolution.norm": "conv_module.layer_norm",
    "convolution.gate": "conv_module.pointwise_conv1",
    "convolution.depthwise": "conv_module.depthwise_conv",
    "convolution.out": "conv_module.pointwise_conv2",
    "second_norm": "ffn2_layer_norm",
    "second.inner": "ffn2.intermediate_dense",
    "second.outer": "ffn2.output_dense",
    "norm": "final_layer_norm",
}
#: parameters with a different leaf name in the checkpoint
CONFORMER_RENAMED = {
    "attention.encoding.key_bias": "self_attn.pos_bias_u",
    "attention.encoding.query_bias": "self_attn.pos_bias_v",
    "attention.encoding.table": "self_attn.distance_embedding.weight",
}


def refuse_adapter(config: Config) -> None:
    """PosexportError for layers after the encoder, which make fewer frames."""
    for key in ("add_adapter", "use_intermediate_ffn_before_adapter"):
        if config.flag(key, False):
            raise PosexportError(f"{config.label} sets {key}: the layers of an adapter are not read, only the encoder")


def stack(config: Config) -> StackConfig:
    """The convolutions that make frames of samples."""
    norm = config.text("feat_extract_norm", "group")
    if norm not in ("group", "layer"):
        raise PosexportError(f"{config.label} says feat_extract_norm = {norm!r:.60}; it must be group or layer")
    try:
        return StackConfig(
            channels=config.sizes("conv_dim", (512,) * 7),
            kernels=config.sizes("conv_kernel", (10, 3, 3, 3, 3, 2, 2)),
            strides=config.sizes("conv_stride", (5, 2, 2, 2, 2, 2, 2)),
            norm=cast(Literal["group", "layer"], norm),
            bias=config.flag("conv_bias", False),
            activation=config.activation("feat_extract_activation", "gelu"),
        )
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}; check conv_dim, conv_kernel and conv_stride") from err


def audio_config(config: Config, default_activation: str, **arrangement: Any) -> AudioConfig:
    """Sizes, which must be said, and the family's ``arrangement``; the rest has transformers' defaults."""
    with config.named_in_errors():
        return AudioConfig(
            hidden=config.size("hidden_size"),
            layers=config.size("num_hidden_layers", most=MOST_LAYERS),
            heads=config.size("num_attention_heads"),
            feedforward=config.size("intermediate_size"),
            activation=config.activation("hidden_act", default_activation),
            eps=config.number("layer_norm_eps", 1e-5),
            **arrangement,
        )


def conformer_kernel(config: Config) -> int:
    """The width of the convolution along time."""
    kernel = config.size("conv_depthwise_kernel_size", 31)
    if kernel % 2 == 0:
        raise PosexportError(f"{config.label} says conv_depthwise_kernel_size = {kernel}; it must be odd")
    return kernel


def conformer_encoding(config: Config, settings: AudioConfig, default: str, *, clipped: bool) -> Encoding:
    """What ``position_embeddings_type`` names; ``clipped``: ``relative_key`` is one of the names."""
    head_size, known = settings.layer.head_size, ["relative", "rotary", *(["relative_key"] if clipped else [])]
    kind = config.values.get("position_embeddings_type", default)
    if kind is None:
        return NoPE()
    if kind not in known:
        raise PosexportError(
            f"{config.label} says position_embeddings_type = {kind!r:.60}; known: {', '.join(known)}, or null for none"
        )
    if kind == "relative":
        return Conformer(hidden=settings.hidden, heads=settings.heads, head_size=head_size)
    if kind == "relative_key":
        left, right = (
            config.size(f"{side}_max_position_embeddings", n, least=0) for side, n in (("left", 64), ("right", 8))
        )
        return Wav2Vec2Bert(left=left, right=right, head_size=head_size)
    if head_size % 2:
        raise PosexportError(
            f"{config.label} makes heads of size {head_size} (hidden_size / num_attention_heads); a rotation needs an "
            f"even number of channels"
        )
    return Rope(head_size=head_size, base=_base(config))


def rotates(config: Config) -> bool:
    """Whether positions are rotations, which here turn the attention's input."""
    return bool(config.values.get("position_embeddings_type") == "rotary")


def head(config: Config, hidden: int, task: str) -> Head:
    if task == "ctc":
        return TokenClassification(hidden, config.size("vocab_size"))
    return Features(hidden)


def named_stack(prefix: str, config: StackConfig) -> dict[str, Origin]:
    """The convolutions and their normalisations."""
    names = {"convolution": "conv", "norm": "layer_norm"}
    return in_layers(len(config.channels), "stack", f"{prefix}.feature_extractor.conv_layers.{{i}}.", names)


def named_projection(prefix: str) -> dict[str, Origin]:
    """What makes hidden states of features, and the head."""
    return {
        "encoder.norm": origin(f"{prefix}.feature_projection.layer_norm"),
        "encoder.project": origin(f"{prefix}.feature_projection.projection"),
        "head.out": origin("lm_head"),
    }


def named_layers(prefix: str, count: int, names: NameMap) -> dict[str, Origin]:
    """The parts of every layer, or its parameters."""
    return in_layers(count, "encoder.layers", f"{prefix}.encoder.layers.{{i}}.", names)


def audio_family(
    model_type: str, build: Callable[[Config, str], Plan], prefix: str, beside: Mapping[str, str | None] = BESIDE
) -> Family:
    return Family(
        model_type=model_type,
        build=build,
        prefix=prefix,
        roots=ROOTS,
        architectures=ARCHITECTURES,
        other_heads=HEADS,
        beside=beside,
    )


def _base(config: Config) -> float:
    value = config.values.get("rotary_embedding_base", 10000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value < math.inf:
        raise PosexportError(f"{config.label} says rotary_embedding_base = {value!r:.60}; it must be a number above 1")
    return float(value)

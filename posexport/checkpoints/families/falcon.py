"""Falcon: rotations or ALiBi, grouped or one KV head, feed-forward parallel to attention.

Almazrouei et al., "The Falcon Series" (arXiv:2311.16867), released code. ``new_decoder_architecture`` (40B and later)
has two normalisations and grouped keys and values, the old one a single normalisation and, with ``multi_query``, one
head of keys and values. ALiBi's penalties are scaled by one over the root of the head's size like the products. They
are exact here; transformers rounds slopes and products to bfloat16, which beyond 256 tokens cannot tell neighbours
apart, and so does ``--definition released``.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.alibi import Alibi, Variant
from posexport.encodings.encoding import Encoding
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.rope import rotation
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig

_ONCE = {"token": "transformer.word_embeddings", "final_norm": "transformer.ln_f"}
_LAYER = {
    "attention.output": "self_attention.dense",
    "feedforward.inner": "mlp.dense_h_to_4h",
    "feedforward.outer": "mlp.dense_4h_to_h",
}
#: the two normalisations of a layer, by how many there are side by side (None: one after the other)
_NORMS = {
    None: ("input_layernorm", "post_attention_layernorm"),
    1: ("input_layernorm", "input_layernorm"),
    2: ("ln_attn", "ln_mlp"),
}


def _build(config: Config, task: str) -> Plan:
    hidden = config.size("hidden_size")
    heads = config.heads(hidden)
    new = config.flag("new_decoder_architecture", False)
    bias = config.flag("bias", False)
    kv_heads = _kv_heads(config, heads, new)
    norms = _parallel_norms(config, new)
    settings = decoder.settings(
        config,
        tied=True,
        heads=heads,
        kv_heads=kv_heads,
        feedforward=config.size_or("ffn_hidden_size", 4 * hidden),
        activation=config.activation("activation", "gelu"),
        attention_bias=bias,
        feedforward_bias=bias,
        parallel_norms=norms,
        eps=config.number("layer_norm_epsilon", 1e-5),
    )
    first, second = _NORMS[norms]
    qkv = decoder.fused_qkv("self_attention.query_key_value", groups=kv_heads, queries=heads // kv_heads)
    layer = {"attention_residual.norm": first, "feedforward_residual.norm": second}
    names = decoder.Names(once=_ONCE, layer=_LAYER | qkv | layer, stem="transformer.h.{i}")
    with config.named_in_errors():
        return decoder.plan(task, settings, _encoding(config, settings), names)


def _kv_heads(config: Config, heads: int, new: bool) -> int:
    if not new:
        return 1 if config.flag("multi_query", True) else heads
    kv_heads = config.size_or("num_kv_heads", heads)
    if heads % kv_heads:
        raise PosexportError(
            f"{config.label} says {config.key('num_kv_heads')} = {kv_heads}; it must divide the {heads} heads"
        )
    return kv_heads


def _parallel_norms(config: Config, new: bool) -> int | None:
    """The number of parallel normalisations; None: sequential sublayers. The new architecture is always parallel."""
    if not config.flag("parallel_attn", True):
        if new:
            raise PosexportError(
                f"{config.label} says parallel_attn = False with new_decoder_architecture = True, which is always "
                "parallel; remove one of the keys"
            )
        return None
    if not new and config.size_or("num_ln_in_parallel_attn", 1) != 1:
        raise PosexportError(
            f"{config.label} says num_ln_in_parallel_attn = {config.values['num_ln_in_parallel_attn']!r:.60} without "
            "new_decoder_architecture, which has one; remove one of the keys"
        )
    if not new:
        return 1
    return config.size_or("num_ln_in_parallel_attn", 2, most=2)


def _encoding(config: Config, settings: DecoderConfig) -> Encoding:
    if config.flag("alibi", False):
        rounded = config.follows_code(
            paper="ALiBi's slopes and biases are exact",
            code="transformers rounds ALiBi's slopes and biases to bfloat16, which moves logits by 0.5% at 64 tokens",
        )
        variant: Variant = "falcon" if rounded else "causal"
        return Alibi(heads=settings.heads, variant=variant, factor=settings.head_size**-0.5)
    schedule = from_config(config.values, head_size=settings.head_size)
    return rotation(schedule, head_size=settings.head_size)


FALCON = decoder.family(
    "falcon",
    _build,
    prefix="transformer",
    roots=("word_embeddings.", "h.", "ln_f."),
    spellings={
        "hidden_size": ("n_embed", "hidden_size"),
        "num_attention_heads": ("num_attention_heads", "n_head"),
        "num_hidden_layers": ("num_hidden_layers", "n_layer"),
        "num_kv_heads": ("num_kv_heads", "n_head_kv"),
    },
)

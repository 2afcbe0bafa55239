"""Falcon: rotations or ALiBi, keys and values shared by groups of heads or by all, feed-forward beside attention.

Almazrouei et al., "The Falcon Series" (arXiv:2311.16867), released code. ``new_decoder_architecture`` (40B and later)
has two normalisations and grouped keys and values, the old one a single normalisation and, with ``multi_query``, one
head of keys and values. ALiBi's penalties are scaled by one over the root of the head's size like the products. They
are exact here; transformers rounds slopes and products to bfloat16, which beyond 256 tokens cannot tell neighbours
apart, and so does ``--as-transformers``.
"""

from posexport.encodings.alibi import Alibi, Variant
from posexport.encodings.encoding import Encoding
from posexport.encodings.frequencies.config import from_config
from posexport.encodings.rope_base import rotation
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given, Names, family, fused, plan
from posexport.sources.huggingface.plan import Plan

_SPELLINGS = {
    "hidden_size": ("n_embed", "hidden_size"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_kv_heads": ("num_kv_heads", "n_head_kv"),
}
_ONCE = {"token": "transformer.word_embeddings", "final_norm": "transformer.ln_f"}
_STEM = "transformer.h.{i}"
_LAYER = {
    "attention.output": f"{_STEM}.self_attention.dense",
    "feedforward.inner": f"{_STEM}.mlp.dense_h_to_4h",
    "feedforward.outer": f"{_STEM}.mlp.dense_4h_to_h",
}
#: the two normalisations of a layer, by how many there are side by side (None: one after the other)
_NORMS = {
    None: ("input_layernorm", "post_attention_layernorm"),
    1: ("input_layernorm", "input_layernorm"),
    2: ("ln_attn", "ln_mlp"),
}


def _plan(config: Config, task: str) -> Plan:
    given = Given(config, _SPELLINGS)
    hidden, vocab = given.size("hidden_size"), config.size("vocab_size")
    heads = given.heads(hidden)
    new = config.flag("new_decoder_architecture", False)
    bias = config.flag("bias", False)
    groups = _groups(config, given, heads, new)
    norms = _parallel_norms(config, given, new)
    settings = DecoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        layers=given.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=given.size("ffn_hidden_size", 4 * hidden),
        activation=config.activation("activation", "gelu"),
        attention_bias=bias,
        feedforward_bias=bias,
        parallel_norms=norms,
        eps=config.number("layer_norm_epsilon", 1e-5),
        padding_id=given.padding(vocab),
        tied=config.flag("tie_word_embeddings", True),
    )
    first, second = _NORMS[norms]
    rows = fused(f"{_STEM}.self_attention.query_key_value", groups=groups, queries=heads // groups)
    layer = {"attention_residual.norm": f"{_STEM}.{first}", "feedforward_residual.norm": f"{_STEM}.{second}"}
    names = Names(once=_ONCE, layer=_LAYER | rows | layer)
    return plan(config, task, settings, lambda: _encoding(config, settings), names)


def _groups(config: Config, given: Given, heads: int, new: bool) -> int:
    if not new:
        return 1 if config.flag("multi_query", True) else heads
    groups = given.size("num_kv_heads", heads)
    if heads % groups:
        raise PosexportError(
            f"{config.label} says {given.key('num_kv_heads')} = {groups}; it must divide the {heads} heads"
        )
    return groups


def _parallel_norms(config: Config, given: Given, new: bool) -> int | None:
    """How many normalisations stand side by side; None: attention first. The new architecture is always parallel."""
    if not config.flag("parallel_attn", True):
        if new:
            raise PosexportError(
                f"{config.label} says parallel_attn = False with new_decoder_architecture = True, which is always "
                "parallel; remove one of the keys"
            )
        return None
    if not new and given.size("num_ln_in_parallel_attn", 1) != 1:
        raise PosexportError(
            f"{config.label} says num_ln_in_parallel_attn = {config.values['num_ln_in_parallel_attn']!r:.60} without "
            "new_decoder_architecture, which has one; remove one of the keys"
        )
    if not new:
        return 1
    return given.size("num_ln_in_parallel_attn", 2, most=2)


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


FALCON = family("falcon", _plan, prefix="transformer", roots=("word_embeddings.", "h.", "ln_f."))

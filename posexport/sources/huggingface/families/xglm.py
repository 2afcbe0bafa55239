"""XGLM: fairseq's sines and cosines, which begin at position 2, and token embeddings times the root of their width.

Lin et al., "Few-shot Learning with Multilingual Language Models" (arXiv:2112.10668), released code. Any length is
taken.
"""

import math

from posexport.encodings.sinusoidal import Sinusoidal
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given, Names, family, plan
from posexport.sources.huggingface.plan import Plan

#: what the first token's position counts as
OFFSET = 2
_SPELLINGS = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_attention_heads": ("attention_heads", "num_attention_heads"),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
}
_ONCE = {"token": "model.embed_tokens", "final_norm": "model.layer_norm"}
_STEM = "model.layers.{i}"
_LAYER = {
    "attention.query": f"{_STEM}.self_attn.q_proj",
    "attention.key": f"{_STEM}.self_attn.k_proj",
    "attention.value": f"{_STEM}.self_attn.v_proj",
    "attention.output": f"{_STEM}.self_attn.out_proj",
    "attention_residual.norm": f"{_STEM}.self_attn_layer_norm",
    "feedforward.inner": f"{_STEM}.fc1",
    "feedforward.outer": f"{_STEM}.fc2",
    "feedforward_residual.norm": f"{_STEM}.final_layer_norm",
}


def _plan(config: Config, task: str) -> Plan:
    given = Given(config, _SPELLINGS)
    hidden, vocab = given.size("hidden_size"), config.size("vocab_size")
    padding = config.size("pad_token_id", 1, least=0, most=vocab - 1)
    if padding >= OFFSET:
        raise PosexportError(
            f"{config.label} says pad_token_id = {padding}; transformers then gives position {padding - OFFSET} the "
            f"padding's zeros, which is not read: it must be below {OFFSET}"
        )
    settings = DecoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=given.heads(hidden),
        layers=given.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=config.size("ffn_dim"),
        activation=config.activation("activation_function", "gelu"),
        embedding_scale=math.sqrt(hidden) if config.flag("scale_embedding", True) else 1.0,
        eps=1e-5,
        padding_id=padding,
        tied=config.flag("tie_word_embeddings", True),
    )
    names = Names(once=_ONCE, layer=_LAYER)
    return plan(
        config,
        task,
        settings,
        lambda: Sinusoidal(hidden=hidden, layout="half", timescales="tensor2tensor", offset=OFFSET),
        names,
    )


XGLM = family(
    "xglm",
    _plan,
    prefix="model",
    roots=("embed_tokens.", "layers.", "layer_norm."),
    beside={"embed_positions.weights": None},
)

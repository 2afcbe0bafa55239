"""BLOOM: ALiBi, a normalisation of the embeddings, queries, keys and values of a head side by side in one map.

Le Scao et al., "BLOOM" (arXiv:2211.05100). The released numbers, ``slope * j`` for key ``j`` counted from the row's
first token, are under softmax the penalty by distance, which is computed here: it stays small where it matters, and the
error with it (at length 2049 in float32 6e-7 of scale instead of 2e-5).
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.alibi import Alibi

_ONCE = {
    "token": "transformer.word_embeddings",
    "embedding_norm": "transformer.word_embeddings_layernorm",
    "final_norm": "transformer.ln_f",
}
_LAYER = {
    "attention.output": "self_attention.dense",
    "attention_residual.norm": "input_layernorm",
    "feedforward.inner": "mlp.dense_h_to_4h",
    "feedforward.outer": "mlp.dense_4h_to_h",
    "feedforward_residual.norm": "post_attention_layernorm",
}


def _build(config: Config, task: str) -> Plan:
    config.only("sums are taken before the normalisations, not after", apply_residual_connection_post_layernorm=False)
    hidden = config.size("hidden_size")
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=4 * hidden,
        activation="gelu_new",
        embedding_norm=True,
        eps=config.number("layer_norm_epsilon", 1e-5),
    )
    qkv = decoder.fused_qkv("self_attention.query_key_value", groups=settings.heads)
    names = decoder.Names(once=_ONCE, layer={**_LAYER, **qkv}, stem="transformer.h.{i}")
    return decoder.plan(task, settings, Alibi(heads=settings.heads, variant="causal"), names)


BLOOM = decoder.family(
    "bloom",
    _build,
    prefix="transformer",
    roots=("word_embeddings.", "word_embeddings_layernorm.", "h.", "ln_f."),
    spellings={
        "hidden_size": ("n_embed", "hidden_size"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    },
)

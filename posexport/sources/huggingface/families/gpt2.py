"""GPT-2, and GPT-BigCode with its one head of keys and values: learned positions, normalisation before each sublayer.

GPT-2 stores its maps input by output. ``scale_attn_by_inverse_layer_idx`` divides a layer's scores by its number, which
is done to its queries here; transformers 4.57 does it with ``attn_implementation=eager`` only.
"""

from dataclasses import replace

from posexport.encodings.absolute import Absolute
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given, Names, Rows, family, fused, plan
from posexport.sources.huggingface.plan import Plan

_SPELLINGS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
}
_ONCE = {"token": "transformer.wte", "encoding": "transformer.wpe", "final_norm": "transformer.ln_f"}
_LAYER: dict[str, str | Rows] = {
    "attention.output": "transformer.h.{i}.attn.c_proj",
    "attention_residual.norm": "transformer.h.{i}.ln_1",
    "feedforward.inner": "transformer.h.{i}.mlp.c_fc",
    "feedforward.outer": "transformer.h.{i}.mlp.c_proj",
    "feedforward_residual.norm": "transformer.h.{i}.ln_2",
}
_FUSED = "transformer.h.{i}.attn.c_attn"
_MASKS = ("transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias")


def _settings(config: Config, activation: str) -> DecoderConfig:
    given = Given(config, _SPELLINGS)
    hidden, vocab = given.size("hidden_size"), config.size("vocab_size")
    return DecoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=given.heads(hidden),
        layers=given.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=given.size("n_inner", 4 * hidden),
        activation=config.activation("activation_function", activation),
        scaled=config.flag("scale_attn_weights", True),
        eps=config.number("layer_norm_epsilon", 1e-5),
        padding_id=given.padding(vocab),
        tied=config.flag("tie_word_embeddings", True),
    )


def _encoding(config: Config, settings: DecoderConfig) -> Absolute:
    return Absolute(
        max_positions=Given(config, _SPELLINGS).size("max_position_embeddings", 1024), hidden=settings.hidden
    )


def _gpt2(config: Config, task: str) -> Plan:
    settings = _settings(config, "gelu_new")
    # cross attention is refused where config.json tells; a file may have it all the same
    names = Names(
        once=_ONCE, layer=_LAYER | fused(_FUSED), transposed=True, masks=_MASKS, decides=("add_cross_attention",)
    )
    made = plan(config, task, settings, lambda: _encoding(config, settings), names)
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        config.remark(
            "sets scale_attn_by_inverse_layer_idx, which is computed; transformers 4.57 does so with "
            "attn_implementation=eager only, transformers 5 always"
        )
        for i in range(settings.layers):
            for leaf in ("weight", "bias"):
                query = f"decoder.layers.{i}.attention.query.{leaf}"
                made.origins[query] = replace(made.origins[query], factor=1 / (i + 1))
    return made


def _gpt_bigcode(config: Config, task: str) -> Plan:
    settings = _settings(config, "gelu_pytorch_tanh")
    heads = settings.heads
    shared = config.flag("multi_query", True)
    settings = settings.changed(kv_heads=1 if shared else None)
    rows = fused(_FUSED, queries=heads) if shared else fused(_FUSED, groups=heads)
    names = Names(once=_ONCE, layer=_LAYER | rows, masks=_MASKS)
    return plan(config, task, settings, lambda: _encoding(config, settings), names)


GPT2 = family("gpt2", _gpt2, prefix="transformer", roots=("wte.", "wpe.", "h.", "ln_f."))
GPT_BIGCODE = family(
    "gpt_bigcode", _gpt_bigcode, prefix="transformer", roots=("wte.", "wpe.", "h.", "ln_f."), beside={"bias": None}
)

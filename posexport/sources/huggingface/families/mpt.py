"""MPT: ALiBi, no biases anywhere.

MosaicML, "MPT-7B" (2023, released code). ALiBi's largest exponent is ``alibi_bias_max``, as in that code; transformers
has the key and takes 8 all the same, as ``--as-transformers`` does. Any length is taken; transformers ends at
``max_seq_len``, for which it builds its table. Refused is what else the released code can do (clipping, normalised
queries, learned positions).
"""

from typing import Any

from posexport.encodings.alibi import Alibi
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given, Names, family, fused, plan
from posexport.sources.huggingface.plan import Plan

_ONCE = {"token": "transformer.wte", "final_norm": "transformer.norm_f"}
_STEM = "transformer.blocks.{i}"
_LAYER = {
    "attention.output": f"{_STEM}.attn.out_proj",
    "attention_residual.norm": f"{_STEM}.norm_1",
    "feedforward.inner": f"{_STEM}.ffn.up_proj",
    "feedforward.outer": f"{_STEM}.ffn.down_proj",
    "feedforward_residual.norm": f"{_STEM}.norm_2",
}
_SPELLINGS = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
}
#: keys of attn_config with the one value that is computed
_ATTENTION = {
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "qk_ln": False,
    "prefix_lm": False,
    "alibi": True,
    "attn_uses_sequence_id": False,
}


def _plan(config: Config, task: str) -> Plan:
    given = Given(config, _SPELLINGS)
    given.only("maps and normalisations have no biases", no_bias=True)
    given.only("logits are not scaled", logit_scale=None)
    given.only("the feed-forward is four times as wide", expansion_ratio=4)
    attention = _attention(config)
    hidden, vocab = given.size("hidden_size"), config.size("vocab_size")
    settings = DecoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=given.heads(hidden),
        layers=given.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=4 * hidden,
        activation="gelu",
        attention_bias=False,
        feedforward_bias=False,
        norm_bias=False,
        eps=config.number("layer_norm_epsilon", 1e-5),
        padding_id=given.padding(vocab),
        tied=config.flag("tie_word_embeddings", True),
    )
    if (scale := attention.get("softmax_scale")) is not None:
        settings = settings.changed(scale_size=_positive(config, "softmax_scale", scale) ** -2)
    bias_max = _positive(config, "alibi_bias_max", attention.get("alibi_bias_max", 8))
    if bias_max != 8 and config.follows_code(
        paper=f"ALiBi's smallest slope is 2^-{bias_max:g}, by attn_config.alibi_bias_max",
        code="transformers has that key and takes 2^-8 all the same",
    ):
        bias_max = 8.0
    names = Names(once=_ONCE, layer=_LAYER | fused(f"{_STEM}.attn.Wqkv"))
    return plan(
        config,
        task,
        settings,
        lambda: Alibi(heads=settings.heads, variant="causal", bias_max=bias_max),
        names,
    )


def _attention(config: Config) -> dict[str, Any]:
    """``attn_config``, which must ask for nothing else than what is computed."""
    found = config.values.get("attn_config") or {}
    if not isinstance(found, dict):
        raise PosexportError(f"{config.label} says attn_config = {found!r:.60}; it must be an object")
    for key, value in _ATTENTION.items():
        if (got := found.get(key, value)) != value and not (key == "clip_qkv" and got == 0):
            needed = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            raise PosexportError(f"{config.label} says attn_config.{key} = {got!r:.60}; only {needed} is read")
    return found


def _positive(config: Config, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise PosexportError(f"{config.label} says attn_config.{key} = {value!r:.60}; it must be a number above 0")
    return float(value)


MPT = family("mpt", _plan, prefix="transformer", roots=("wte.", "blocks.", "norm_f."))

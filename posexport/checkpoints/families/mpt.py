"""MPT: ALiBi, no biases anywhere.

MosaicML, "MPT-7B" (2023, released code). ALiBi's largest exponent is ``alibi_bias_max``, as in that code; transformers
has the key and takes 8 all the same, as ``--definition released`` does. Any length is accepted; transformers ends at
``max_seq_len``, for which it builds its table. Other options of the released code (normalised
queries, learned positions) are refused.
"""

from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.alibi import Alibi
from posexport.errors import PosexportError

_ONCE = {"token": "transformer.wte", "final_norm": "transformer.norm_f"}
_LAYER = {
    "attention.output": "attn.out_proj",
    "attention_residual.norm": "norm_1",
    "feedforward.inner": "ffn.up_proj",
    "feedforward.outer": "ffn.down_proj",
    "feedforward_residual.norm": "norm_2",
}
#: keys of attn_config with the one value that is computed
_ATTENTION = {
    "attn_type": "multihead_attention",
    "qk_ln": False,
    "prefix_lm": False,
    "alibi": True,
    "attn_uses_sequence_id": False,
}


def _build(config: Config, task: str) -> Plan:
    config.only("linear projections and normalisations have no biases", no_bias=True)
    config.only("logits are not scaled", logit_scale=None)
    config.only("the feed-forward is four times as wide", expansion_ratio=4)
    attention = _attention(config)
    hidden = config.size("hidden_size")
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=4 * hidden,
        activation="gelu",
        attention_bias=False,
        feedforward_bias=False,
        norm_bias=False,
        eps=config.number("layer_norm_epsilon", 1e-5),
    )
    if clip := attention.get("clip_qkv"):
        settings = settings.changed(projection_clip=_positive(config, "clip_qkv", clip))
    if (scale := attention.get("softmax_scale")) is not None:
        settings = settings.changed(scale_size=_positive(config, "softmax_scale", scale) ** -2)
    bias_max = _positive(config, "alibi_bias_max", attention.get("alibi_bias_max", 8))
    if bias_max != 8 and config.follows_code(
        paper=f"ALiBi's smallest slope is 2^-{bias_max:g}, by attn_config.alibi_bias_max",
        code="transformers has that key and takes 2^-8 all the same",
    ):
        bias_max = 8.0
    names = decoder.Names(once=_ONCE, layer={**_LAYER, **decoder.fused_qkv("attn.Wqkv")}, stem="transformer.blocks.{i}")
    with config.named_in_errors():
        encoding = Alibi(heads=settings.heads, variant="causal", bias_max=bias_max)
    return decoder.plan(task, settings, encoding, names)


def _attention(config: Config) -> dict[str, Any]:
    """Reads ``attn_config``; PosexportError if it sets an option that is not supported."""
    stated = config.values.get("attn_config") or {}
    if not isinstance(stated, dict):
        raise PosexportError(f"{config.label} says attn_config = {stated!r:.60}; it must be an object")
    for key, value in _ATTENTION.items():
        if (got := stated.get(key, value)) != value:
            needed = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            raise PosexportError(f"{config.label} says attn_config.{key} = {got!r:.60}; only {needed} is read")
    return stated


def _positive(config: Config, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise PosexportError(f"{config.label} says attn_config.{key} = {value!r:.60}; it must be a number above 0")
    return float(value)


MPT = decoder.family(
    "mpt",
    _build,
    prefix="transformer",
    roots=("wte.", "blocks.", "norm_f."),
    spellings={
        "hidden_size": ("d_model", "hidden_size"),
        "num_attention_heads": ("n_heads", "num_attention_heads"),
        "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    },
)

"""GPT-NeoX and Pythia: a part of every head is rotated, attention and feed-forward are parallel.

Black et al., "GPT-NeoX-20B" (arXiv:2204.06745), section 2.1. ``use_parallel_residual`` false puts the feed-forward
after the attention. Any length is accepted: ``max_position_embeddings`` is the trained length.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.encoding import Encoding
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.rope import rotation
from posexport.models.decoder import DecoderConfig

_ONCE = {"token": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm"}
_LAYER = {
    "attention.output": "attention.dense",
    "attention_residual.norm": "input_layernorm",
    "feedforward.inner": "mlp.dense_h_to_4h",
    "feedforward.outer": "mlp.dense_4h_to_h",
    "feedforward_residual.norm": "post_attention_layernorm",
}
_UNREAD = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")


def _build(config: Config, task: str) -> Plan:
    settings = decoder.settings(
        config,
        tied=False,
        feedforward=config.size("intermediate_size"),
        activation=config.activation("hidden_act", "gelu"),
        attention_bias=config.flag("attention_bias", True),
        parallel_norms=2 if config.flag("use_parallel_residual", True) else None,
        eps=config.number("layer_norm_eps", 1e-5),
    )
    layer = _LAYER | decoder.fused_qkv("attention.query_key_value", groups=settings.heads)
    names = decoder.Names(once=_ONCE, layer=layer, stem="gpt_neox.layers.{i}", head="embed_out", unread=_UNREAD)
    with config.named_in_errors():
        return decoder.plan(task, settings, _encoding(config, settings), names)


def _encoding(config: Config, settings: DecoderConfig) -> Encoding:
    """Returns the encoding. ``rotary_pct`` and ``rotary_emb_base`` take precedence over the keys of later files."""
    values = {
        "rope_theta": config.values.get("rotary_emb_base", config.values.get("rope_theta")),
        "partial_rotary_factor": config.values.get("rotary_pct", config.values.get("partial_rotary_factor", 0.25)),
    }
    schedule = from_config(config.under(values), head_size=settings.head_size)
    return rotation(schedule, head_size=settings.head_size)


GPT_NEOX = decoder.family(
    "gpt_neox", _build, prefix="gpt_neox", roots=("embed_in.", "layers.", "final_layer_norm.", "rotary_emb.")
)

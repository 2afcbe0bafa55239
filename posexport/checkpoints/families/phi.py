"""Phi (1, 1.5, 2): half of a head's channels are rotated; both sublayers read the same normalised tokens."""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan

_ONCE = rotary.ONCE | {"final_norm": "model.final_layernorm"}
_LAYER = rotary.LAYER | {
    "attention.output": "self_attn.dense",
    "attention.query_norm": "self_attn.q_layernorm",
    "attention.key_norm": "self_attn.k_layernorm",
    "feedforward.inner": "mlp.fc1",
    "feedforward.outer": "mlp.fc2",
}


def _phi(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        eps=("layer_norm_eps", 1e-5),
        activation=config.activation("hidden_act", "gelu_new"),
        gated=False,
        norm_kind="layer",
        parallel_norms=1,
        attention_bias=True,
        feedforward_bias=True,
        head_bias=True,
        head_norm="shared" if config.flag("qk_layernorm", False) else "none",
    )
    rotation = rotary.rope(config, settings.head_size, partial=True, **rotary.partial_factor(config, 0.5))
    return rotary.plan(task, settings, rotation, once=_ONCE, layer=_LAYER)


PHI = rotary.family("phi", _phi)

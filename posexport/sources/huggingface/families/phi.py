"""Phi (1, 1.5, 2): half of a head's channels turn; attention and feed-forward read the same normalised tokens."""

from typing import Any

from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.rotary_decoder import LAYER, ONCE, family, plan, rotary, settings
from posexport.sources.huggingface.plan import Plan

_ONCE = ONCE | {"decoder.final_norm": "model.final_layernorm"}
_LAYER = LAYER | {
    "attention.output": "self_attn.dense",
    "attention.query_norm": "self_attn.q_layernorm",
    "attention.key_norm": "self_attn.k_layernorm",
    "feedforward.inner": "mlp.fc1",
    "feedforward.outer": "mlp.fc2",
}


def _phi(config: Config, task: str) -> Plan:
    given = settings(
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
    turned = rotary(config, given.head_size, partial=True, **share(config, 0.5))
    return plan(task, given, turned, once=_ONCE, layer=_LAYER)


def share(config: Config, default: float) -> dict[str, Any]:
    """The family's ``partial_rotary_factor`` where the file has none."""
    return {} if config.values.get("partial_rotary_factor") is not None else {"partial_rotary_factor": default}


PHI = family("phi", _phi)

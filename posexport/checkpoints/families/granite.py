"""Granite: Llama's layers, with multipliers of embeddings, scores, sublayers' outputs and logits.

IBM, "Granite 3.0 Language Models" (2024), released code; the multipliers follow muP (Yang et al.,
arXiv:2203.03466).
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan


def _build(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
        embedding_scale=_multiplier(config, "embedding_multiplier"),
        embedding_scaled_table=False,
        scale_size=_multiplier(config, "attention_multiplier") ** -2,
        residual_scale=_multiplier(config, "residual_multiplier"),
        head_scale=1 / _multiplier(config, "logits_scaling"),
    )
    return rotary.plan(task, settings, rotary.rope(config, settings.head_size))


def _multiplier(config: Config, key: str) -> float:
    return config.positive(key, 1.0) or 1.0


GRANITE = rotary.family("granite", _build)

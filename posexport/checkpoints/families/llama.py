"""Llama, Mistral, Qwen 2 and Qwen 3: rotations, RMS normalisation before, gated feed-forwards, grouped-query attention.

Mistral sees a window of ``sliding_window`` tokens in all layers. Qwen 2 has biases on queries, keys and values; Qwen 3
normalises queries and keys head by head. Both may have a window in the layers from ``max_window_layers`` on.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig


def _llama(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
    )
    return rotary.plan(task, settings, rotary.rope(config, settings.head_size))


def _mistral(config: Config, task: str) -> Plan:
    settings, tokens = rotary.settings(config), rotary.window(config, 4096)
    kind = rotary.FULL if tokens is None else rotary.SLIDING
    kinds = rotary.layer_kinds(config, settings.layers, [kind] * settings.layers)
    if set(kinds) != {kind}:
        raise PosexportError(
            f"{config.label} says layer_types = {kinds!r:.60} and sliding_window = {tokens}; mistral has one kind of "
            "layer, and it is not known which of both the weights were made for"
        )
    return rotary.plan(task, settings, rotary.by_layer(config, rotary.rope(config, settings.head_size), kinds, tokens))


def _qwen2(config: Config, task: str) -> Plan:
    settings = rotary.settings(config, attention_bias=True, output_bias=False)
    return _windowed(config, task, settings)


def _qwen3(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        head_norm="shared",
        head_width=config.size("head_dim", 128),
    )
    return _windowed(config, task, settings)


def _windowed(config: Config, task: str, settings: DecoderConfig) -> Plan:
    tokens = rotary.window(config, 4096) if config.flag("use_sliding_window", False) else None
    first = config.size("max_window_layers", 28, least=0)
    default = [rotary.FULL if tokens is None or i < first else rotary.SLIDING for i in range(settings.layers)]
    kinds = rotary.layer_kinds(config, settings.layers, default)
    return rotary.plan(task, settings, rotary.by_layer(config, rotary.rope(config, settings.head_size), kinds, tokens))


LLAMA = rotary.family("llama", _llama)
MISTRAL = rotary.family("mistral", _mistral)
QWEN2 = rotary.family("qwen2", _qwen2)
QWEN3 = rotary.family("qwen3", _qwen3)

"""Llama, Mistral, Qwen 2 and Qwen 3: rotations, RMS normalisation before, gated feed-forwards, grouped-query attention.

Mistral sees a window of ``sliding_window`` tokens in all layers. Qwen 2 has biases on queries, keys and values; Qwen 3
normalises queries and keys head by head. Both may have a window in the layers from ``max_window_layers`` on.
"""

from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.rotary import (
    FULL,
    SLIDING,
    by_layer,
    layer_kinds,
    rotary,
    rotary_family,
    rotary_plan,
    rotary_settings,
    window,
)
from posexport.sources.huggingface.plan import Plan


def _llama(config: Config, task: str) -> Plan:
    settings = rotary_settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
    )
    return rotary_plan(task, settings, rotary(config, settings.head_size))


def _mistral(config: Config, task: str) -> Plan:
    settings, tokens = rotary_settings(config), window(config, 4096)
    kind = FULL if tokens is None else SLIDING
    kinds = layer_kinds(config, settings.layers, [kind] * settings.layers)
    if set(kinds) != {kind}:
        raise PosexportError(
            f"{config.label} says layer_types = {kinds!r:.60} and sliding_window = {tokens}; mistral has one kind of "
            "layer, and it is not known which of both the weights were made for"
        )
    return rotary_plan(task, settings, by_layer(config, rotary(config, settings.head_size), kinds, tokens))


def _qwen2(config: Config, task: str) -> Plan:
    settings = rotary_settings(config, attention_bias=True, output_bias=False)
    return _windowed(config, task, settings)


def _qwen3(config: Config, task: str) -> Plan:
    settings = rotary_settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        head_norm="shared",
        head_width=config.size("head_dim", 128),
    )
    return _windowed(config, task, settings)


def _windowed(config: Config, task: str, settings: DecoderConfig) -> Plan:
    tokens = window(config, 4096) if config.flag("use_sliding_window", False) else None
    first = config.size("max_window_layers", 28, least=0)
    default = [FULL if tokens is None or i < first else SLIDING for i in range(settings.layers)]
    kinds = layer_kinds(config, settings.layers, default)
    return rotary_plan(task, settings, by_layer(config, rotary(config, settings.head_size), kinds, tokens))


LLAMA = rotary_family("llama", _llama)
MISTRAL = rotary_family("mistral", _mistral)
QWEN2 = rotary_family("qwen2", _qwen2)
QWEN3 = rotary_family("qwen3", _qwen3)

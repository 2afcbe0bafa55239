"""Llama, Mistral, Qwen 2 and Qwen 3: rotations, RMS normalisation before, gated feed-forwards, shared keys and values.

Mistral sees a window of ``sliding_window`` tokens in all layers. Qwen 2 has biases on queries, keys and values; Qwen 3
normalises queries and keys head by head. Both may have a window in the layers from ``max_window_layers`` on.
"""

from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.rotary_decoder import (
    FULL,
    SLIDING,
    by_layer,
    family,
    layer_kinds,
    plan,
    rotary,
    settings,
    window,
)
from posexport.sources.huggingface.plan import Plan


def _llama(config: Config, task: str) -> Plan:
    given = settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
    )
    return plan(task, given, rotary(config, given.head_size))


def _mistral(config: Config, task: str) -> Plan:
    given, tokens = settings(config), window(config, 4096)
    kind = FULL if tokens is None else SLIDING
    kinds = layer_kinds(config, given.layers, [kind] * given.layers)
    if set(kinds) != {kind}:
        raise PosexportError(
            f"{config.label} says layer_types = {kinds!r:.60} and sliding_window = {tokens}; mistral has one kind of "
            "layer, and it is not known which of both the weights were made for"
        )
    return plan(task, given, by_layer(config, rotary(config, given.head_size), kinds, tokens))


def _qwen2(config: Config, task: str) -> Plan:
    given = settings(config, attention_bias=True, output_bias=False)
    return _windowed(config, task, given)


def _qwen3(config: Config, task: str) -> Plan:
    given = settings(
        config,
        attention_bias=config.flag("attention_bias", False),
        head_norm="shared",
        head_width=config.size("head_dim", 128),
    )
    return _windowed(config, task, given)


def _windowed(config: Config, task: str, given: DecoderConfig) -> Plan:
    tokens = window(config, 4096) if config.flag("use_sliding_window", False) else None
    first = config.size("max_window_layers", 28, least=0)
    default = [FULL if tokens is None or i < first else SLIDING for i in range(given.layers)]
    kinds = layer_kinds(config, given.layers, default)
    return plan(task, given, by_layer(config, rotary(config, given.head_size), kinds, tokens))


LLAMA = family("llama", _llama)
MISTRAL = family("mistral", _mistral)
QWEN2 = family("qwen2", _qwen2)
QWEN3 = family("qwen3", _qwen3)

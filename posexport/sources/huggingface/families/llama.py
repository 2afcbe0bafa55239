"""Llama, Mistral, Qwen 2 and Qwen 3: rotations, RMS normalisation before, gated feed-forwards, shared keys and values.

Mistral sees a window of ``sliding_window`` tokens in all layers. Qwen 2 has biases on queries, keys and values; Qwen 3
normalises queries and keys head by head. Both may have a window in the layers from ``max_window_layers`` on.
"""

from posexport.errors import PosexportError
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
        **({} if "head_dim" in config.values else {"head_width": 128}),
    )
    return _windowed(config, task, given)


LLAMA = family("llama", _llama)
MISTRAL = family("mistral", _mistral)
QWEN2 = family("qwen2", _qwen2)
QWEN3 = family("qwen3", _qwen3)

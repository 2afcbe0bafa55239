"""SmolLM3: Llama's layers, some without any positions.

Every ``no_rope_layer_interval``-th layer, or those with 0 in ``no_rope_layers``, rotates nothing (Yang et al., "Rope to
Nope and Back Again", arXiv:2501.18795).
"""

from posexport.encodings.compose import ByLayer
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.rotary_decoder import (
    FULL,
    SLIDING,
    family,
    layer_kinds,
    near,
    plan,
    rotary,
    settings,
    window,
)
from posexport.sources.huggingface.plan import Plan


def _smollm3(config: Config, task: str) -> Plan:
    given = settings(
        config,
        tied=True,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
    )
    turns = _turns(config, given.layers)
    tokens = window(config)
    windowed = tokens is not None and config.flag("use_sliding_window", False)
    kinds = layer_kinds(config, given.layers, [SLIDING if windowed and not turn else FULL for turn in turns])
    turned = rotary(config, given.head_size, default_base=2_000_000.0)
    still = NoPE()
    layers: list[Encoding] = []
    for kind, turn in zip(kinds, turns, strict=True):
        rotation: Encoding = turned if turn else still
        layers.append(near(config, rotation, tokens) if kind == SLIDING else rotation)
    return plan(task, given, ByLayer(layers))


def _turns(config: Config, layers: int) -> list[bool]:
    """Which layers rotate."""
    given = config.values.get("no_rope_layers")
    if given is None:
        every = config.size("no_rope_layer_interval", 4)
        return [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(given, list) or len(given) != layers or not all(turn in (0, 1) for turn in given):
        raise PosexportError(
            f"{config.label} says no_rope_layers = {given!r:.60}; it must be a list of num_hidden_layers = {layers} "
            "numbers, 1 for a layer that rotates and 0 for one that does not"
        )
    return [bool(turn) for turn in given]


SMOLLM3 = family("smollm3", _smollm3)

"""SmolLM3: Llama's layers, some without any positions.

Every ``no_rope_layer_interval``-th layer, or those with 0 in ``no_rope_layers``, rotates nothing (Yang et al., "Rope to
Nope and Back Again", arXiv:2501.18795).
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan
from posexport.encodings.compose import ByLayer
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError


def _smollm3(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        tied=True,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
    )
    rotates = _rotates(config, settings.layers)
    tokens = rotary.window(config)
    windowed = tokens is not None and config.flag("use_sliding_window", False)
    default = [rotary.SLIDING if windowed and not rotated else rotary.FULL for rotated in rotates]
    kinds = rotary.layer_kinds(config, settings.layers, default)
    rotation, without = rotary.rope(config, settings.head_size, default_base=2_000_000.0), NoPE()
    layers: list[Encoding] = []
    for kind, rotated in zip(kinds, rotates, strict=True):
        encoding: Encoding = rotation if rotated else without
        layers.append(rotary.in_window(config, encoding, tokens) if kind == rotary.SLIDING else encoding)
    return rotary.plan(task, settings, ByLayer(layers))


def _rotates(config: Config, layers: int) -> list[bool]:
    stated = config.values.get("no_rope_layers")
    if stated is None:
        every = config.size("no_rope_layer_interval", 4)
        return [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(stated, list) or len(stated) != layers or not all(value in (0, 1) for value in stated):
        raise PosexportError(
            f"{config.label} says no_rope_layers = {stated!r:.60}; it must be a list of num_hidden_layers = {layers} "
            "numbers, 1 for a layer that rotates and 0 for one that does not"
        )
    return [bool(value) for value in stated]


SMOLLM3 = rotary.family("smollm3", _smollm3)

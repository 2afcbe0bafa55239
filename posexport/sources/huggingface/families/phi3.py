"""Phi-3 and Phi-4-mini: Llama's layers with fused maps, LongRoPE, and a window in all layers.

Which of LongRoPE's two lists turns a row is decided row by row, by its length in the call at hand; transformers takes
the batch's largest length. A ``rope_scaling`` called ``su`` or, with LongRoPE's lists, ``yarn`` is what early files
call ``longrope``.
"""

from typing import Any

from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.rotary_decoder import (
    FULL,
    LAYER,
    SLIDING,
    by_layer,
    family,
    plan,
    rotary,
    settings,
    window,
)
from posexport.sources.huggingface.plan import Origin, Plan

#: of config.json where it does not say
_LENGTH = 4096


def _phi3(config: Config, task: str) -> Plan:
    given = settings(config, eps=("rms_norm_eps", 1e-5))
    turned = rotary(config, given.head_size, partial=True, **_lengths(config), **_tables(config))
    tokens = window(config)
    kinds = [FULL if tokens is None else SLIDING] * given.layers
    groups = given.kv_heads or given.heads
    parts = given.heads + 2 * groups
    fused = "model.layers.{i}.self_attn.qkv_proj.weight"
    joined = "model.layers.{i}.mlp.gate_up_proj.weight"
    special = {
        "attention.query.weight": Origin((fused,), part=(0, 1), parts=parts, width=given.heads),
        "attention.key.weight": Origin((fused,), part=(given.heads, 1), parts=parts, width=groups),
        "attention.value.weight": Origin((fused,), part=(given.heads + groups, 1), parts=parts, width=groups),
        "feedforward.inner.weight": Origin((joined,), part=(0, 1), parts=2),
        "feedforward.gate.weight": Origin((joined,), part=(1, 1), parts=2),
    }
    return plan(task, given, by_layer(config, turned, kinds, tokens), layer=LAYER, special=special)


def _lengths(config: Config) -> dict[str, Any]:
    """The length now and at first; the latter stands beside the table, in transformers 5 also in it.

    Both versions take the family's length where it does not stand beside the table, whatever the table says.
    """
    key = "original_max_position_embeddings"
    first = config.size(key, _LENGTH)
    for name in ("rope_parameters", "rope_scaling"):
        table = config.values.get(name)
        inside = table.get(key) if isinstance(table, dict) else None
        if key not in config.values and inside not in (None, first):
            raise PosexportError(
                f"{config.label} says {key} = {inside!r:.60} in {name} and nothing beside it, where transformers takes "
                f"{first} for phi3 all the same: set {key} beside {name} too"
            )
    return {"max_position_embeddings": config.size("max_position_embeddings", _LENGTH), key: first}


def _tables(config: Config) -> dict[str, Any]:
    """The tables that early files call ``yarn`` although they hold LongRoPE's lists."""
    found = {}
    for name in ("rope_parameters", "rope_scaling"):
        table = config.values.get(name)
        if isinstance(table, dict) and "long_factor" in table:
            early = {key: table[key] for key in ("rope_type", "type") if table.get(key) == "yarn"}
            found[name] = {**table, **dict.fromkeys(early, "longrope")}
    return found


PHI3 = family("phi3", _phi3)

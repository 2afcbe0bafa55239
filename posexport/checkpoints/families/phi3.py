"""Phi-3 and Phi-4-mini: Llama's layers with fused projections, LongRoPE, and a window in all layers.

Each row selects one of LongRoPE's two lists by its length in the current call; transformers selects by the batch's
largest length. A ``rope_scaling`` called ``su`` or, with LongRoPE's lists, ``yarn`` is what early files
call ``longrope``.
"""

from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Origin, Plan, SplitFused
from posexport.errors import PosexportError

#: of config.json where it does not say
_LENGTH = 4096


def _phi3(config: Config, task: str) -> Plan:
    settings = rotary.settings(config, eps=("rms_norm_eps", 1e-5))
    rotation = rotary.rope(config, settings.head_size, partial=True, **_lengths(config), **_tables(config))
    tokens = rotary.window(config)
    kinds = [rotary.FULL if tokens is None else rotary.SLIDING] * settings.layers
    heads, kv_heads = settings.heads, settings.kv_heads or settings.heads
    qkv, gate_up, parts = ("self_attn.qkv_proj",), ("mlp.gate_up_proj",), heads + 2 * kv_heads
    layer = rotary.LAYER | {
        "attention.query": Origin(qkv, (SplitFused(0, parts, width=heads),)),
        "attention.key": Origin(qkv, (SplitFused(heads, parts, width=kv_heads),)),
        "attention.value": Origin(qkv, (SplitFused(heads + kv_heads, parts, width=kv_heads),)),
        "feedforward.inner": Origin(gate_up, (SplitFused(0, 2),)),
        "feedforward.gate": Origin(gate_up, (SplitFused(1, 2),)),
    }
    return rotary.plan(task, settings, rotary.by_layer(config, rotation, kinds, tokens), layer=layer)


def _lengths(config: Config) -> dict[str, Any]:
    """Returns the current and the original length; transformers 5 stores the latter in the RoPE table, too.

    Without the key next to the table both versions use the family's length, whatever the table says.
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
    tables = {}
    for name in ("rope_parameters", "rope_scaling"):
        table = config.values.get(name)
        if isinstance(table, dict) and "long_factor" in table:
            early = {key: table[key] for key in ("rope_type", "type") if table.get(key) == "yarn"}
            tables[name] = {**table, **dict.fromkeys(early, "longrope")}
    return tables


PHI3 = rotary.family("phi3", _phi3)

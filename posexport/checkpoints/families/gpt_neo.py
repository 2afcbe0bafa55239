"""GPT-Neo: learned positions, layers that see all tokens and layers with a window in turn, scores without a scale.

Black et al., "GPT-Neo" (2021, doi:10.5281/zenodo.5297715), released code.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.absolute import Absolute
from posexport.encodings.compose import InputAndLayers
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError

_KINDS = ("global", "local")
_NAMES = decoder.Names(
    once={"token": "transformer.wte", "encoding.at_input": "transformer.wpe", "final_norm": "transformer.ln_f"},
    layer={
        "attention.query": "attn.attention.q_proj",
        "attention.key": "attn.attention.k_proj",
        "attention.value": "attn.attention.v_proj",
        "attention.output": "attn.attention.out_proj",
        "attention_residual.norm": "ln_1",
        "feedforward.inner": "mlp.c_fc",
        "feedforward.outer": "mlp.c_proj",
        "feedforward_residual.norm": "ln_2",
    },
    stem="transformer.h.{i}",
    unread=("attn.attention.bias", "attn.attention.masked_bias"),
)


def _build(config: Config, task: str) -> Plan:
    hidden = config.size("hidden_size")
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=config.size_or("intermediate_size", 4 * hidden),
        activation=config.activation("activation_function", "gelu_new"),
        scaled=False,
        attention_bias=False,
        output_bias=True,
        eps=config.number("layer_norm_epsilon", 1e-5),
    )
    with torch.device("meta"):
        positions = Absolute(max_positions=config.size("max_position_embeddings", 2048), hidden=hidden)
    window = LocalWindow(left=config.size("window_size", 256) - 1, right=0)
    layers = [positions if kind == "global" else window for kind in _layer_kinds(config, settings.layers)]
    return decoder.plan(task, settings, InputAndLayers(positions, layers), _NAMES)


def _layer_kinds(config: Config, layers: int) -> list[str]:
    """``attention_layers``, or what transformers makes of ``attention_types``: kinds in turn, and how many turns."""
    types = config.values.get("attention_types", [[list(_KINDS), layers // 2]])
    kinds = config.values.get("attention_layers")
    try:
        kinds = [kind for turn, count in types for _ in range(count) for kind in turn] if kinds is None else kinds
        valid = len(kinds) == layers and set(kinds) <= set(_KINDS) and "global" in kinds
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise PosexportError(
            f"{config.label} says attention_types = {types!r:.60}, attention_layers = {kinds!r:.60}; they must name "
            f"{' or '.join(_KINDS)} for each of {layers} layers, and {_KINDS[0]} once"
        )
    return list(kinds)


GPT_NEO = decoder.family(
    "gpt_neo",
    _build,
    prefix="transformer",
    roots=("wte.", "wpe.", "h.", "ln_f."),
    spellings={
        "num_attention_heads": ("num_heads", "num_attention_heads"),
        "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    },
)

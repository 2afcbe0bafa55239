"""StarCoder 2: rotations, grouped-query attention, layer normalisation, biases, and a window in all layers.

Lozhkov et al., "StarCoder 2 and The Stack v2" (arXiv:2402.19173), released code.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan

_LAYER = rotary.ATTENTION | rotary.NORMS | {"feedforward.inner": "mlp.c_fc", "feedforward.outer": "mlp.c_proj"}


def _build(config: Config, task: str) -> Plan:
    bias = config.flag("use_bias", True)
    settings = rotary.settings(
        config,
        eps=("norm_epsilon", 1e-5),
        tied=True,
        kv_heads=config.size("num_key_value_heads", 2),
        activation=config.activation("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        norm_kind="layer",
        attention_bias=bias,
        feedforward_bias=bias,
    )
    tokens = rotary.window(config)
    kinds = [rotary.FULL if tokens is None else rotary.SLIDING] * settings.layers
    encoding = rotary.by_layer(config, rotary.rope(config, settings.head_size), kinds, tokens)
    return rotary.plan(task, settings, encoding, layer=_LAYER)


STARCODER2 = rotary.family("starcoder2", _build)

"""GPT-2, and GPT-BigCode with its one KV head: learned positions, normalisation before each sublayer.

GPT-2 stores its linear projections as [inputs, outputs]. ``scale_attn_by_inverse_layer_idx`` divides a layer's scores
by its number, which is done to its queries here; transformers 4.57 does it with ``attn_implementation=eager`` only.
"""

import functools
from dataclasses import replace

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import NameMap, Plan, Scale, Transpose, origin
from posexport.encodings.absolute import Absolute
from posexport.models.decoder import DecoderConfig

_ONCE = {"token": "transformer.wte", "encoding": "transformer.wpe", "final_norm": "transformer.ln_f"}
_PROJECTIONS = {
    "attention.output": "attn.c_proj",
    "feedforward.inner": "mlp.c_fc",
    "feedforward.outer": "mlp.c_proj",
}
_NORMS = {"attention_residual.norm": "ln_1", "feedforward_residual.norm": "ln_2"}
_FUSED = "attn.c_attn"


def _gpt2(config: Config, task: str) -> Plan:
    stored: NameMap = {**_PROJECTIONS, **decoder.fused_qkv(_FUSED)}
    projections = {
        path: replace(origin(name), transforms=(Transpose(), *origin(name).transforms)) for path, name in stored.items()
    }
    plan = _plan(config, task, _settings(config, "gelu_new"), projections)
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        config.remark(
            "sets scale_attn_by_inverse_layer_idx, which is computed; transformers 4.57 does so with "
            "attn_implementation=eager only, transformers 5 always"
        )
        for i in range(config.size("num_hidden_layers")):
            for leaf in ("weight", "bias"):
                query = f"decoder.layers.{i}.attention.query.{leaf}"
                plan.origins[query] = plan.origins[query].then(Scale(1 / (i + 1)))
    return plan


def _gpt_bigcode(config: Config, task: str) -> Plan:
    settings = _settings(config, "gelu_pytorch_tanh")
    if config.flag("multi_query", True):
        qkv = decoder.fused_qkv(_FUSED, queries=settings.heads)
        return _plan(config, task, settings.changed(kv_heads=1), {**_PROJECTIONS, **qkv})
    return _plan(config, task, settings, {**_PROJECTIONS, **decoder.fused_qkv(_FUSED, groups=settings.heads)})


def _settings(config: Config, activation: str) -> DecoderConfig:
    hidden = config.size("hidden_size")
    return decoder.settings(
        config,
        tied=True,
        feedforward=config.size_or("n_inner", 4 * hidden),
        activation=config.activation("activation_function", activation),
        scaled=config.flag("scale_attn_weights", True),
        eps=config.number("layer_norm_epsilon", 1e-5),
    )


def _plan(config: Config, task: str, settings: DecoderConfig, projections: NameMap) -> Plan:
    with config.named_in_errors(), torch.device("meta"):
        encoding = Absolute(max_positions=config.size_or("max_position_embeddings", 1024), hidden=settings.hidden)
    masks = ("attn.bias", "attn.masked_bias")
    names = decoder.Names(once=_ONCE, layer={**_NORMS, **projections}, stem="transformer.h.{i}", unread=masks)
    # cross attention is refused where config.json tells; a file may have it all the same
    return decoder.plan(task, settings, encoding, names, decides=("add_cross_attention",))


_family = functools.partial(
    decoder.family,
    prefix="transformer",
    roots=("wte.", "wpe.", "h.", "ln_f."),
    spellings={
        "hidden_size": ("n_embd", "hidden_size"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
        "max_position_embeddings": ("n_positions", "max_position_embeddings"),
    },
)
GPT2 = _family("gpt2", _gpt2)
GPT_BIGCODE = _family("gpt_bigcode", _gpt_bigcode, beside={"bias": None})

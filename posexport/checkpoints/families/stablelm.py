"""StableLM: a quarter of a head's channels are rotated, and normalisations have biases.

Some sizes have one normalisation for both sublayers, which are added together, and some normalise every head's queries
and keys.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan


def _stablelm(config: Config, task: str) -> Plan:
    per_head = config.flag("qk_layernorm", False)
    settings = rotary.settings(
        config,
        eps=("layer_norm_eps", 1e-5),
        norm_kind="layer",
        attention_bias=config.flag("use_qkv_bias", False),
        output_bias=False,
        parallel_norms=1 if config.flag("use_parallel_residual", False) else None,
        head_norm="each" if per_head else "none",
    )
    rotation = rotary.rope(config, settings.head_size, partial=True, **rotary.partial_factor(config, 0.25))
    norms = {
        f"attention.{name}_norm.weights.{head}": f"self_attn.{name[0]}_layernorm.norms.{head}.weight"
        for name, heads in (("query", settings.heads), ("key", settings.kv_heads or settings.heads))
        for head in range(heads if per_head else 0)
    }
    return rotary.plan(task, settings, rotation, parameters=norms)


STABLELM = rotary.family("stablelm", _stablelm)

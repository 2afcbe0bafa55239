"""StableLM: a quarter of a head's channels turn; layer normalisation; in some sizes one for both sublayers, which are
added together, and in some a normalisation of every head's queries and keys."""

from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.phi import share
from posexport.sources.huggingface.families.rotary_decoder import LAYER, family, plan, rotary, settings
from posexport.sources.huggingface.plan import Origin, Plan


def _stablelm(config: Config, task: str) -> Plan:
    each = config.flag("qk_layernorm", False)
    given = settings(
        config,
        eps=("layer_norm_eps", 1e-5),
        norm_kind="layer",
        attention_bias=config.flag("use_qkv_bias", False),
        output_bias=False,
        parallel_norms=1 if config.flag("use_parallel_residual", False) else None,
        head_norm="each" if each else "none",
    )
    turned = rotary(config, given.head_size, partial=True, **share(config, 0.25))
    special = {}
    for ours, theirs, heads in (("query", "q", given.heads), ("key", "k", given.kv_heads or given.heads)):
        for head in range(heads if each else 0):
            name = f"model.layers.{{i}}.self_attn.{theirs}_layernorm.norms.{head}.weight"
            special[f"attention.{ours}_norm.weights.{head}"] = Origin((name,))
    return plan(task, given, turned, layer=LAYER, special=special)


STABLELM = family("stablelm", _stablelm)

"""OLMo 2: Llama's sublayers with normalisation of their outputs, and of all heads' queries and keys as one.

OLMo Team, "2 OLMo 2 Furious" (arXiv:2501.00656), section 3.1.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan

_LAYER = {
    **rotary.ATTENTION,
    **rotary.FEEDFORWARD,
    "attention_residual.answer_norm": "post_attention_layernorm",
    "feedforward_residual.answer_norm": "post_feedforward_layernorm",
}


def _build(config: Config, task: str) -> Plan:
    settings = rotary.settings(
        config,
        eps=("rms_norm_eps", 1e-5),
        attention_bias=config.flag("attention_bias", False),
        norm="none",
        answer_norm=True,
        head_norm="projection",
    )
    return rotary.plan(task, settings, rotary.rope(config, settings.head_size), layer=_LAYER)


OLMO2 = rotary.family("olmo2", _build)

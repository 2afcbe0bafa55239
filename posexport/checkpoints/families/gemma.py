"""Gemma, Gemma 2 and Gemma 3 (text): embeddings scaled by the root of their size, RMS factors stored without their 1.

Gemma 2 has a window in every other layer, normalises a sublayer's output too, and caps scores and logits. Gemma 3 has a
window in five layers of six, which have a separate RoPE base (``rope_local_base_freq``, or a table of
``rope_parameters``), and normalises queries and keys. In half precision transformers rounds the embeddings' factor to
that precision; here it is exact.

Gemma's ``hidden_act`` of "gelu" means its approximation by tanh: so the weights were made, and so transformers 5 reads
it; 4.57.6 computes the exact function. ``hidden_activation`` is read by neither, nor is Gemma 3's
``attn_logit_softcapping``.
"""

from collections.abc import Callable
from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan
from posexport.encodings.compose import ByLayer, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig

_TANH_GELU = "gelu_pytorch_tanh"
#: Gemma 2 and 3 have four normalisations a layer
_FOUR_NORMS = rotary.LAYER | {
    "attention_residual.answer_norm": "post_attention_layernorm",
    "feedforward_residual.norm": "pre_feedforward_layernorm",
    "feedforward_residual.answer_norm": "post_feedforward_layernorm",
}
#: layers of Gemma 3 from one that sees all tokens to the next
_PATTERN = 6


def _gemma(config: Config, task: str) -> Plan:
    _check_causal(config)
    settings = _settings(config, activation=_activation(config))
    return rotary.plan(task, settings, rotary.rope(config, settings.head_size))


def _gemma2(config: Config, task: str) -> Plan:
    _check_causal(config)
    settings = _settings(config, **_second(config, score_cap=50.0, logit_cap=30.0))
    if (cap := settings.layer.attention.score_cap) is not None:
        config.remark(
            f"caps scores at {cap:g} (attn_logit_softcapping), which is computed; transformers 4.57 "
            "leaves it out unless attn_implementation=eager"
        )
    default = [rotary.FULL if i % 2 else rotary.SLIDING for i in range(settings.layers)]
    kinds = rotary.layer_kinds(config, settings.layers, default)
    encoding = rotary.by_layer(config, rotary.rope(config, settings.head_size), kinds, rotary.window(config, 4096))
    return rotary.plan(task, settings, encoding, layer=_FOUR_NORMS)


def _gemma3(config: Config, task: str) -> Plan:
    if config.positive("attn_logit_softcapping") is not None:
        config.remark("sets attn_logit_softcapping, which transformers ignores in gemma3_text: scores are not capped")
    settings = _settings(config, **_second(config) | {"score_cap": None}, head_norm="shared")
    every = config.size("sliding_window_pattern", _PATTERN)
    default = [rotary.SLIDING if (i + 1) % every else rotary.FULL for i in range(settings.layers)]
    kinds = rotary.layer_kinds(config, settings.layers, default)
    far: Encoding = rotary.rope(config, settings.head_size, default_base=1_000_000.0)
    near = far
    causal = not _bidirectional(config)
    if task == "text-generation" and not causal:
        raise PosexportError(
            f"{config.label} sets use_bidirectional_attention: tokens see later ones, so nothing can be generated; "
            "choose --task features"
        )
    if rotary.SLIDING in kinds:
        local, tokens = _local(config, settings.head_size), rotary.window(config, 4096)
        near = rotary.in_window(config, local, tokens) if causal else _around(local, tokens)
    encoding = ByLayer(far if kind == rotary.FULL else near for kind in kinds)
    return rotary.plan(task, settings, encoding, layer=_FOUR_NORMS, causal=causal)


def _bidirectional(config: Config) -> bool:
    key = "use_bidirectional_attention"
    return config.values.get(key) is not None and config.flag(key, False)


def _around(encoding: Encoding, tokens: int | None) -> Encoding:
    """Half of the window on either side of a token, as transformers divides it."""
    side = (tokens or 0) // 2
    return RotationAndTerm(encoding, LocalWindow(left=side, right=side))


def _local(config: Config, size: int) -> Any:
    """The rotation of layers with a window: by their table in ``rope_parameters``, or by ``rope_local_base_freq``."""
    table = config.values.get("rope_parameters")
    if isinstance(table, dict) and any(isinstance(value, dict) for value in table.values()):
        return rotary.rope(config, size, kind=rotary.SLIDING)
    base = config.values.get("rope_local_base_freq", 10000.0)
    return rotary.rope(config, size, rope_theta=base, rope_parameters=None, rope_scaling=None)


def _check_causal(config: Config) -> None:
    if _bidirectional(config):
        raise PosexportError(
            f"{config.label} sets use_bidirectional_attention: tokens see later ones, which is computed for "
            "gemma3_text alone"
        )


def _settings(config: Config, **fixed: Any) -> DecoderConfig:
    return rotary.settings(
        config,
        tied=True,
        head_width=config.size("head_dim", 256),
        attention_bias=config.flag("attention_bias", False),
        norm_offset=1.0,
        embedding_scale=config.size("hidden_size") ** 0.5,
        **fixed,
    )


def _second(config: Config, score_cap: float | None = None, logit_cap: float | None = None) -> dict[str, Any]:
    """Returns the settings of Gemma 2 that Gemma does not have."""
    return {
        "activation": config.activation("hidden_activation", _TANH_GELU),
        "answer_norm": True,
        "scale_size": config.positive("query_pre_attn_scalar", 256.0),
        "score_cap": config.positive("attn_logit_softcapping", score_cap),
        "logit_cap": config.positive("final_logit_softcapping", logit_cap),
    }


def _activation(config: Config) -> str:
    """``hidden_act``, as transformers 4.57.6 and 5.23.0 read it, whatever ``hidden_activation`` says."""
    stated = config.activation("hidden_act", _TANH_GELU)
    name = _TANH_GELU if stated == "gelu" else stated
    if stated == "gelu":
        config.remark(
            "says hidden_act = gelu, which for gemma means the approximation by tanh: so its weights were trained and "
            "transformers 5 reads it; transformers 4.57 computes the exact function"
        )
    other = config.values.get("hidden_activation")
    if other not in (None, name):
        config.remark(
            f"says hidden_activation = {other!r:.60}, which transformers ignores in gemma: {name} is computed"
        )
    return name


_BUILDS: dict[str, Callable[[Config, str], Plan]] = {"gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3}
GEMMA, GEMMA2, GEMMA3_TEXT = (rotary.family(name, build) for name, build in _BUILDS.items())

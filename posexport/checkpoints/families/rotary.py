"""What decoders with rotations have in common: sizes, rotations and windows of layers, names of weights.

Any length is accepted: ``max_position_embeddings`` is the trained length, no table ends there. A layer with
a window of ``sliding_window`` tokens sees that many tokens, itself included.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import NameMap, Plan
from posexport.encodings.compose import ByLayer, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.rope import Rope, rotation
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig

FULL, SLIDING = "full_attention", "sliding_attention"
#: keys of a mixture of experts
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
#: modules of the decoder and of a layer to the checkpoint's
ONCE = {"token": "model.embed_tokens", "final_norm": "model.norm"}
ATTENTION = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
}
FEEDFORWARD = {
    "feedforward.inner": "mlp.gate_proj",
    "feedforward.gate": "mlp.up_proj",
    "feedforward.outer": "mlp.down_proj",
}
NORMS = {"attention_residual.norm": "input_layernorm", "feedforward_residual.norm": "post_attention_layernorm"}
LAYER = ATTENTION | FEEDFORWARD | NORMS


def settings(
    config: Config, *, eps: tuple[str, float] = ("rms_norm_eps", 1e-6), tied: bool = False, **fixed: Any
) -> DecoderConfig:
    """Sizes and arrangement as most of these families write them; ``fixed``: what the family says."""
    for key in _EXPERTS:
        if config.values.get(key):
            raise PosexportError(
                f"{config.label} sets {key} = {config.values[key]!r:.60}: a mixture of experts is not computed here, "
                "only one feed-forward a layer"
            )
    vocab, heads = config.size("vocab_size"), config.size("num_attention_heads")
    stated = {
        "heads": heads,
        "feedforward": config.size("intermediate_size"),
        "kv_heads": config.size_or_none("num_key_value_heads") or heads,
        "head_width": config.size_or_none("head_dim"),
        "gated": True,
        "norm_kind": "rms",
        "eps": config.number(*eps),
        "attention_bias": False,
        "feedforward_bias": False,
        "padding_id": _padding_id(config, vocab),
    }
    if "activation" not in fixed:
        stated["activation"] = config.activation("hidden_act", "silu")
    with config.named_in_errors():
        return decoder.settings(config, tied=tied, **{**stated, **fixed})


def _padding_id(config: Config, vocab: int) -> int:
    """``pad_token_id``; 0 where the file has none, or one outside of the vocabulary (-1 in old files)."""
    value = config.values.get("pad_token_id")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab else 0


def layer_kinds(config: Config, layers: int, default: Sequence[str]) -> list[str]:
    """``layer_types``, one of `FULL` and `SLIDING` a layer, or ``default`` where the file has none."""
    stated = config.values.get("layer_types")
    kinds = list(default) if stated is None else stated
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise PosexportError(
            f"{config.label} says layer_types = {kinds!r:.60}; it must be a list of num_hidden_layers = {layers}"
        )
    if strange := [kind for kind in kinds if kind not in (FULL, SLIDING)]:
        raise PosexportError(
            f"{config.label} has layers of the type {strange[0]!r:.60} in layer_types, which is not computed here; "
            f"supported are {FULL} and {SLIDING}"
        )
    return kinds


def window(config: Config, default: int | None = None) -> int | None:
    """How many tokens a layer with a window sees; None: the file has no window."""
    value = config.values.get("sliding_window", default)
    return None if value is None else config.size("sliding_window", default)


def rope(
    config: Config, head_size: int, *, kind: str = FULL, partial: bool = False, default_base: float = 1e4, **over: Any
) -> Rope:
    """The rotation of layers of this kind. ``over``: keys of config.json that replace the file's.

    ``partial``: the family may rotate a part of a head's channels and leave the others alone.
    """
    with config.named_in_errors():
        schedule = from_config(config.under(over), head_size=head_size, layer_type=kind, default_base=default_base)
        if schedule.dim != head_size and not partial:
            raise PosexportError(
                f"partial_rotary_factor leaves {schedule.dim} of {head_size} channels to rotate; "
                f"{config.text('model_type')} rotates whole heads"
            )
        return rotation(schedule, head_size=head_size)


def partial_factor(config: Config, default: float) -> dict[str, Any]:
    """The family's ``partial_rotary_factor`` where the file has none."""
    return {} if config.values.get("partial_rotary_factor") is not None else {"partial_rotary_factor": default}


def in_window(config: Config, encoding: Encoding, tokens: int | None) -> Encoding:
    """Restricts the encoding to a window of ``tokens`` tokens."""
    if tokens is None:
        raise PosexportError(f"{config.label} has layers of the type {SLIDING}, and no sliding_window in use; set it")
    return RotationAndTerm(encoding, LocalWindow(left=tokens - 1, right=0))


def by_layer(config: Config, encoding: Encoding, kinds: Sequence[str], tokens: int | None) -> Encoding:
    """One encoding in all layers; layers of the kind `SLIDING` have a window."""
    if SLIDING not in kinds:
        return encoding
    local = in_window(config, encoding, tokens)
    return ByLayer(local if kind == SLIDING else encoding for kind in kinds)


def plan(
    task: str,
    settings: DecoderConfig,
    encoding: Encoding,
    *,
    once: Mapping[str, str] = ONCE,
    layer: NameMap = LAYER,
    parameters: NameMap | None = None,
    causal: bool = True,
) -> Plan:
    """The definition and its origins; the default names are Llama's."""
    unread = ("self_attn.rotary_emb.inv_freq",)
    names = decoder.Names(once=once, layer=layer, stem="model.layers.{i}", parameters=parameters or {}, unread=unread)
    return decoder.plan(task, settings, encoding, names, causal=causal)


def family(model_type: str, build: Callable[[Config, str], Plan]) -> Family:
    return decoder.family(
        model_type,
        build,
        prefix="model",
        roots=("embed_tokens.", "layers.", "norm.", "final_layernorm."),
    )

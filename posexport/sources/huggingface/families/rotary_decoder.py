"""What decoders with rotations have in common: sizes, rotations and windows of layers, names of weights.

Any length is taken: ``max_position_embeddings`` says what a model was trained for, no table ends there. A layer with a
window of ``sliding_window`` tokens sees the token itself and so many less one before it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from posexport.encodings.compose import ByLayer, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.frequencies.config import from_config
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.rope_base import Rotary, rotation
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, DecoderModel, LanguageModel
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan, origins_of

FULL, SLIDING = "full_attention", "sliding_attention"
#: keys that turn the feed-forward into several, of which a token uses some
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
#: modules of the decoder and of a layer to the checkpoint's
ONCE = {"decoder.token": "model.embed_tokens", "decoder.final_norm": "model.norm", "head.out": "lm_head"}
LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention_residual.norm": "input_layernorm",
    "feedforward_residual.norm": "post_attention_layernorm",
    "feedforward.inner": "mlp.gate_proj",
    "feedforward.gate": "mlp.up_proj",
    "feedforward.outer": "mlp.down_proj",
}


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
    vocab, hidden, heads = config.size("vocab_size"), config.size("hidden_size"), config.size("num_attention_heads")
    given = {
        "vocab": vocab,
        "hidden": hidden,
        "heads": heads,
        "layers": config.size("num_hidden_layers", most=MOST_LAYERS),
        "feedforward": config.size("intermediate_size"),
        "kv_heads": size_or_none(config, "num_key_value_heads") or heads,
        "head_width": size_or_none(config, "head_dim"),
        "gated": True,
        "norm_kind": "rms",
        "eps": config.number(*eps),
        "attention_bias": False,
        "feedforward_bias": False,
        "tied": config.flag("tie_word_embeddings", tied),
        "padding_id": _padding(config, vocab),
    }
    if "activation" not in fixed:
        given["activation"] = config.activation("hidden_act", "silu")
    try:
        return DecoderConfig.of(**{**given, **fixed})
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}") from err


def size_or_none(config: Config, key: str) -> int | None:
    """A whole number from 1 on; None where the file says null or nothing."""
    return None if config.values.get(key) is None else config.size(key)


def _padding(config: Config, vocab: int) -> int:
    """The padding id: 0 where there is none or, as -1 in old files, none of the vocabulary."""
    value = config.values.get("pad_token_id")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab else 0


def layer_kinds(config: Config, layers: int, default: Sequence[str]) -> list[str]:
    """``layer_types``, one of `FULL` and `SLIDING` a layer, or ``default`` where the file has none."""
    given = config.values.get("layer_types")
    kinds = list(default) if given is None else given
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
    """How many tokens a layer with a window sees; None: the file gives no window."""
    value = config.values.get("sliding_window", default)
    return None if value is None else config.size("sliding_window", default)


def rotary(
    config: Config, size: int, *, kind: str = FULL, partial: bool = False, default_base: float = 10000.0, **over: Any
) -> Rotary:
    """The rotation of layers of this kind. ``over``: keys of config.json that stand for the file's.

    ``partial``: the family may rotate a part of a head's channels and leave the others alone.
    """
    try:
        schedule = from_config(config.under(over), head_size=size, layer_type=kind, default_base=default_base)
        if schedule.dim != size and not partial:
            raise PosexportError(
                f"partial_rotary_factor leaves {schedule.dim} of {size} channels to rotate; "
                f"{config.text('model_type')} rotates whole heads"
            )
        return rotation(schedule, head_size=size)
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}") from err


def near(config: Config, rotation: Encoding, tokens: int | None) -> Encoding:
    """The rotation inside a window of so many tokens."""
    if tokens is None:
        raise PosexportError(f"{config.label} has layers of the type {SLIDING}, and no sliding_window in use; set it")
    return RotationAndTerm(rotation, LocalWindow(left=tokens - 1, right=0))


def by_layer(config: Config, rotation: Encoding, kinds: Sequence[str], tokens: int | None) -> Encoding:
    """One rotation in all layers, those of the kind `SLIDING` with a window."""
    if SLIDING not in kinds:
        return rotation
    local = near(config, rotation, tokens)
    return ByLayer(local if kind == SLIDING else rotation for kind in kinds)


def plan(
    task: str,
    given: DecoderConfig,
    encoding: Encoding,
    *,
    once: Mapping[str, str] = ONCE,
    layer: Mapping[str, str] = LAYER,
    special: Mapping[str, Origin] | None = None,
) -> Plan:
    """The definition and its origins. ``special``: origins of a layer's parameters, with ``{i}`` for its number."""
    with torch.device("meta"):
        decoder = Decoder(given, encoding)
        model = DecoderModel(decoder, LanguageModel(given, decoder.token) if task == "text-generation" else None)
    stems, origins = dict(once), {}
    for i in range(given.layers):
        stems |= {f"decoder.layers.{i}.{ours}": f"model.layers.{i}.{theirs}" for ours, theirs in layer.items()}
        for name, origin in (special or {}).items():
            names = tuple(known.format(i=i) for known in origin.names)
            origins[f"decoder.layers.{i}.{name}"] = _renamed(origin, names)
    if task == "text-generation" and given.head.tied:
        origins["decoder.token.weight"] = Origin(tuple(f"{once[m]}.weight" for m in ("decoder.token", "head.out")))
    # a formula's numbers, which old files hold
    unread = tuple(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(given.layers))
    return Plan(model, origins_of(model, stems, origins), unread=unread)


def _renamed(origin: Origin, names: tuple[str, ...]) -> Origin:
    return Origin(**{**vars(origin), "names": names})


def family(model_type: str, make: Callable[[Config, str], Plan]) -> OwnFamily:
    """A family of these, by its plan."""
    return OwnFamily(
        model_type=model_type,
        plan=make,
        prefix="model",
        roots=("embed_tokens.", "layers.", "norm.", "final_layernorm."),
        architectures={"ForCausalLM": "text-generation", "Model": "features"},
        other_heads={"lm_head.": "the language-model head", "score.": "a classification head"},
        allowed=("is_decoder",),
        advice="only language models and features are read; choose --task features for the hidden states",
    )

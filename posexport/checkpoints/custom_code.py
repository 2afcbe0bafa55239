"""Checkpoints with custom code (``auto_map`` in config.json), which is never run.

Many released before transformers knew their family (Phi-3, Falcon, MPT), and compute what the definition of their
``model_type`` does. Others took a known name for another model (Jina's ``bert`` has ALiBi and gates). A checkpoint
with custom code is therefore read where everything fits, and refused with the reason otherwise:

* the classes are called as the family's are, in files called as the family's are;
* every key of config.json is one that the definition was made by, or one of those below, which change no number;
* every tensor fits, as in any checkpoint (`posexport.checkpoints.assign`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from posexport.checkpoints.config import Config, Values
from posexport.errors import PosexportError

#: any value will do
_ANY: Any = ...
#: the ends of the names of classes
_ENDS = (
    "config",
    "model",
    "pretrainedmodel",
    "lmheadmodel",
    "mtmodel",
    "forcausallm",
    "formaskedlm",
    "forpretraining",
    "fornextsentenceprediction",
    "formultiplechoice",
    "forsequenceclassification",
    "fortokenclassification",
    "forquestionanswering",
    "forimageclassification",
    "forconditionalgeneration",
    "forctc",
)
_WORDS = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attention_dropout
attention_probs_dropout_prob attn_implementation auto_map bad_words_ids begin_suppress_tokens bos_token_id
chunk_size_feed_forward classifier_dropout classifier_dropout_prob cls_token_id decoder_start_token_id dropout dtype
early_stopping emb_pdrop embd_pdrop eos_token_id finetuning_task forced_bos_token_id forced_eos_token_id
gradient_checkpointing hidden_dropout hidden_dropout_prob id2label init_device init_std initializer_factor
initializer_range keys_to_ignore_at_inference label2id language mask_token_id max_length max_position_embeddings
min_length model_type n_ctx num_beams num_labels output_attentions output_hidden_states output_past pretraining_tp
problem_type repetition_penalty resid_pdrop return_dict sep_token_id suppress_tokens task_specific_params
temperature tie_word_embeddings tokenizer_class tokenizer_name top_k top_p torch_dtype torchscript
transformers_version unk_token_id use_bfloat16 use_cache
"""
#: keys of config.json that no definition's forward depends on: names, training, texts, generation, and the
#: length that a model without a position table was trained for (a model with one reads it)
IDLE = frozenset(_WORDS.split())
#: of a family: keys of its released configurations that its definition need not ask, with the values at which they
#: change nothing
_RELEASED: dict[str, dict[str, tuple[Any, ...]]] = {
    "phi3": {
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "lm_head_bias": (False,),
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
    },
    "falcon": {
        "apply_residual_connection_post_layernorm": (False,),
        # read with and without new_decoder_architecture only, the other's are written too
        "num_kv_heads": _ANY,
        "n_head_kv": _ANY,
        "multi_query": (True, False),
        # not read with ALiBi in place of the rotation
        "rope_theta": _ANY,
        "rope_scaling": (None,),
    },
    "mpt": {
        "embedding_fraction": _ANY,  # of the gradient
        "init_config": _ANY,
        # ALiBi, without which it is not read, turns it off
        "learned_pos_emb": (True, False),
        "max_seq_len": _ANY,
        "norm_type": ("low_precision_layernorm", "layernorm"),
        "verbose": _ANY,
        "attn_config.attn_impl": _ANY,
        "attn_config.attn_pdrop": _ANY,
        "attn_config.model_type": ("",),
    },
}
#: of a family: what its released code takes otherwise than its definition where config.json does not say
_SAID = {"mpt": ("attn_config.alibi",)}
#: tables that their readers check to the last key, or that are texts
_CHECKED = (
    "rope_scaling",
    "rope_parameters",
    "id2label",
    "label2id",
    "task_specific_params",
    "auto_map",
    "init_config",
)


def check(config: Config) -> list[str]:
    """After a definition was made by ``config``: the remark that code is not run; none where config.json names none.

    Raises:
        PosexportError: the code is not named as the family's, or a key that the definition did not read may matter.
    """
    named = _named(config)
    if not named:
        return []
    kind = config.text("model_type")
    code = f"{config.label} names custom code (auto_map: {', '.join(dict.fromkeys(named))}), which is never run"
    for name in [*named, *_architectures(config)]:
        if not _is_of(name, kind):
            raise PosexportError(
                f"{code}, and {name} is not {kind}'s, so that the checkpoint may compute something else; only code "
                f"that is {kind}'s by name can be left out"
            )
    if silent := [key for key in _SAID.get(kind, ()) if not _says(config.values, key)]:
        raise PosexportError(f"{code}, and does not say {', '.join(silent)}; add what the checkpoint was trained with")
    if strange := sorted(_strange(config.values, _RELEASED.get(kind, {}))):
        raise PosexportError(
            f"{code}, and sets what the definition of {kind} does not know: {', '.join(strange)}; it is read only "
            f"where every key of config.json is understood; remove those that change nothing in what it computes"
        )
    files = dict.fromkeys(f"{name.rpartition('.')[0]}.py" for name in named)
    return [
        f"config.json names custom code (auto_map: {', '.join(files)}); it is not run: the checkpoint is read by "
        f"posexport's definition of {kind}, whose tensors fit exactly"
    ]


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Adds to an error that the checkpoint has custom code, which is not run and might explain it."""
    try:
        yield
    except PosexportError as err:
        if not (named := _named(config)):
            raise
        raise PosexportError(
            f"{err} (config.json names custom code, auto_map: {', '.join(dict.fromkeys(named))}; it is never run, "
            f"and the checkpoint does not fit the definition of {config.values.get('model_type')})"
        ) from err


def _named(config: Config) -> list[str]:
    """The classes of models and configurations in ``auto_map``, as ``file.Class``, without a repository's name."""
    listed = config.values.get("auto_map")
    if not listed:
        return []
    if not isinstance(listed, Mapping):
        raise PosexportError(f"{config.label} says auto_map = {listed!r:.60}; it must map names to classes")
    classes = [name for key, name in listed.items() if key.startswith(("AutoModel", "AutoConfig"))]
    if strange := [name for name in classes if not isinstance(name, str)]:
        raise PosexportError(f"{config.label} names {strange[0]!r:.60} in auto_map; it must be a class in a file")
    return [name.rpartition("--")[2] for name in classes]


def _architectures(config: Config) -> list[str]:
    listed = config.values.get("architectures")
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []


def _is_of(name: str, kind: str) -> bool:
    """Whether ``Class`` or ``file.Class`` is called as the family's."""
    file, _, cls = name.rpartition(".")
    stem = kind.replace("-", "_").lower()
    start = stem.replace("_", "")
    known = cls.lower().startswith(start) and cls.lower()[len(start) :] in _ENDS
    return known and file.lower() in ("", f"configuration_{stem}" if cls.endswith("Config") else f"modeling_{stem}")


def _says(values: Mapping[str, Any], key: str) -> bool:
    first, _, rest = key.partition(".")
    inner = values.get(first)
    return inner is not None and (not rest or (isinstance(inner, Mapping) and _says(inner, rest)))


def _strange(values: Values, released: Mapping[str, tuple[Any, ...]], prefix: str = "") -> Iterator[str]:
    """Keys that the definition did not read and that may matter, with their values."""
    for key, value in values.items():
        name = prefix + key
        if key in values.asked:
            if isinstance(value, Values) and key not in _CHECKED:
                yield from _strange(value, released, f"{name}.")
        elif name in released:
            if released[name] is not _ANY and (type(value), value) not in [(type(one), one) for one in released[name]]:
                yield f"{name} = {value!r:.40}"
        elif prefix or key not in IDLE:
            yield f"{name} = {value!r:.40}"

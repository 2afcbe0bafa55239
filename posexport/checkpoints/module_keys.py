"""Remarks on keys of sentence-transformers' files that are neither followed nor known to be without effect.

The tables list keys that `posexport.checkpoints` follows, and keys that change no vector and no score.
Tokenizer arguments are read with the tokenizer's files.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.sentence_transformers import MODULES, config_name, modules_of
from posexport.checkpoints.text_rules import SETTINGS, optional, texts_config

_WORDS = {
    # versions, requirements and layers that stay in float32 in lower precisions; then PyLate's rules
    "settings": """__version__ model_type prompts default_prompt_name similarity_fn_name truncate_dim activation_fn
        keep_in_fp32_modules requirements
        query_prefix document_prefix query_length document_length attend_to_expansion_tokens skiplist_words
        do_query_expansion""",
    # how sentence-transformers calls the model and its tokenizer
    "texts": """transformer_task modality_config module_output_name unpad_inputs max_seq_length do_lower_case
        processor_kwargs tokenizer_args tokenizer_kwargs""",
    # arguments of from_pretrained that select kernels and files
    "model": """attn_implementation trust_remote_code revision token cache_dir local_files_only subfolder device_map
        low_cpu_mem_usage use_safetensors add_pooling_layer""",
    "pooling": """embedding_dimension word_embedding_dimension pooling_mode include_prompt pooling_mode_cls_token
        pooling_mode_max_tokens pooling_mode_mean_tokens pooling_mode_mean_sqrt_len_tokens
        pooling_mode_weightedmean_tokens pooling_mode_lasttoken""",
    "dense": """in_features out_features bias activation_function module_input_name module_output_name
        use_residual""",
    "splade": "pooling_strategy activation_function embedding_dimension word_embedding_dimension chunk_size",
}
_SETTINGS, _TEXTS, _MODEL_ARGUMENTS, _POOLING, _DENSE, _SPLADE = (words.split() for words in _WORDS.values())
#: further keys of "texts": for token vectors, and for rerankers
_TOKEN_TEXTS = ["query_length", "document_length", "query_expansion"]
_PAIR_TEXTS = ["processing_kwargs"]
#: by module name
_MODULES: Mapping[str, list[str]] = {
    "Pooling": _POOLING,
    "Dense": _DENSE,
    "LayerNorm": ["dimension"],
    "Dropout": ["dropout"],
    "LogitScore": ["true_token_id", "false_token_id", "module_input_name"],
    "SpladePooling": _SPLADE,
    "MultiVectorMask": ["skiplist_words", "skiplist_tasks", "keep_only_token_ids"],
}
_MODULE = ("idx", "name", "path", "type", "kwargs")
#: values that switch a key off
_NOTHING: tuple[Any, ...] = (None, False, {}, [], "")


def remarks(directory: Directory) -> list[str]:
    """A sentence for each key that is not followed; empty without modules.json."""
    return list(_remarks(directory)) if directory.find(MODULES) is not None else []


def _remarks(directory: Directory) -> Iterator[str]:
    modules = modules_of(directory)
    names = [name for name, _ in modules]
    for entry in directory.json(MODULES):
        yield from _left_out(f"{directory.path}/{MODULES}", entry, _MODULE)
    settings = optional(directory, SETTINGS)
    scores = settings is not None and settings.values.get("model_type") == "CrossEncoder"
    if settings is not None:
        yield from _left_out(settings.label, settings.values, _SETTINGS)
    for name, folder in modules:
        if name in ("Transformer", "MLMTransformer"):
            known = [*_TEXTS, *(_PAIR_TEXTS if scores else _TOKEN_TEXTS if "Pooling" not in names else [])]
            yield from _of_texts(texts_config(directory, folder), known)
        elif name == "Normalize" and folder and directory.find(config_name(folder)) is not None:
            yield from _of_normalize(Config(directory, config_name(folder)), "Pooling" in names)
        elif name in _MODULES and folder and directory.find(config_name(folder)) is not None:
            config = Config(directory, config_name(folder))
            yield from _left_out(config.label, config.values, _MODULES[name])


def _of_texts(config: Config | None, known: list[str]) -> Iterator[str]:
    if config is None:
        return
    idle = dict.fromkeys(("model_args", "model_kwargs"), _MODEL_ARGUMENTS)
    for key, allowed in idle.items():
        arguments = config.values.get(key)
        if isinstance(arguments, dict):
            yield from _left_out(f"{config.label}, {key},", arguments, allowed)
    yield from _left_out(config.label, config.values, [*known, *idle])


def _of_normalize(config: Config, pools: bool) -> Iterator[str]:
    expected = "sentence_embedding" if pools else "token_embeddings"
    stated = [config.values.get(key) for key in ("module_input_name", "module_output_name")]
    if any(name not in (None, expected) for name in stated):
        names = f"module_input_name = {stated[0]!r:.60}, module_output_name = {stated[1]!r:.60}"
        yield f"{config.label} says {names}; this bundle normalises {expected}"
    yield from _left_out(config.label, config.values, ["module_input_name", "module_output_name"])


def _left_out(label: str, values: Mapping[str, Any], known: Any) -> Iterator[str]:
    for key, value in values.items():
        if key not in known and value not in _NOTHING:
            yield f"{label} sets {key} = {value!r:.80}, which is not followed here"

"""Keys of tokenizer_config.json and special_tokens_map.json without effect on ids, and remarks for unknown keys."""

from posexport.run.tokenizer.settings import CONFIG, Settings
from posexport.run.tokenizer.switches import SWITCHES

#: followed outside of tokenizer.json: length limits (text rules), chat templates, token types
_ELSEWHERE = {"model_max_length", "max_len", "max_length", "chat_template", "model_input_names", "tokenizer_class"}
#: origin of the files, and how they were saved
_PROVENANCE = {"name_or_path", "tokenizer_file", "special_tokens_map_file", "added_tokens_file", "vocab_file"}
_PROVENANCE |= {
    "merges_file",
    "processor_class",
    "backend",
    "is_local",
    "local_files_only",
    "init_inputs",
    "device_map",
}
_PROVENANCE |= {"use_fast", "from_slow", "files_loaded", "_commit_hash", "transformers_version", "tokenizer_type"}
#: options of slow tokenizers (Python), which transformers does not use for a folder with a tokenizer.json
_SLOW = {"do_basic_tokenize", "never_split", "sp_model_kwargs", "spaces_between_special_tokens", "errors", "unk_id"}
_SLOW |= {"word_tokenizer_type", "subword_tokenizer_type", "remove_space", "sp_model", "use_default_system_prompt"}
_SLOW |= {
    "vocab_type",
    "separate_vocabs",
    "source_lang",
    "target_lang",
    "lang_codes",
    "legacy_behaviour",
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
}
#: defaults of call arguments and of features that posexport does not call
_CALLS = {"stride", "truncation_strategy", "pad_to_multiple_of", "padding", "truncation", "return_token_type_ids"}
_CALLS |= {"suffix_first", "grounded_generation_template", "tool_use_template", "response_schema"}
_CALLS |= {
    "response_template",
    "chat_control_tokens",
    "verbose",
    "max_seq_length",
    "wordpieces_prefix",
    "tgt_lang",
    "language",
    "task",
    "predict_timestamps",
}
_NO_EFFECT = _ELSEWHERE | _PROVENANCE | _SLOW | _CALLS
#: suffix of keys that name an added token for images or audio (``image_token``)
_NAMES_OF_TOKENS = "_token"


def remarks(settings: Settings, vocabulary: dict[str, int]) -> list[str]:
    """A remark for keys that are neither followed nor known to have no effect."""
    followed = {key for switch in SWITCHES for key in switch.keys}
    unknown = [
        key for key in settings.values if key not in followed | _NO_EFFECT and not _in(vocabulary, settings, key)
    ]
    sentences = []
    if "auto_map" in unknown:
        unknown.remove("auto_map")
        sentences.append(
            f"{CONFIG} names a tokenizer in Python (auto_map), which is not run; ids are those of tokenizer.json"
        )
    if unknown:
        named = ", ".join(f"{key} in {settings.origins[key]}" for key in unknown[:8])
        sentences.append(f"{named}: unknown to posexport, so the tokenizer of the bundle does not follow it")
    return sentences


def _in(vocabulary: dict[str, int], settings: Settings, key: str) -> bool:
    value = settings.values[key]
    return value is None or (key.endswith(_NAMES_OF_TOKENS) and isinstance(value, str) and value in vocabulary)

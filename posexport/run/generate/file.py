"""Reads generation options from a bundle's ``generation_config.json``, or ``config.json`` if there is no other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import locate
from posexport.run.generate.config import GenerationConfig, token_ids
from posexport.run.unsupported import UNSUPPORTED
from posexport.run.whisper import WhisperTokens

GENERATION, MODEL = "generation_config.json", "config.json"
_TOKENS = ("eos_token_id", "bos_token_id", "decoder_start_token_id")
#: options that exist only in posexport, or are read separately
_SEPARATE = ("seed", "recompute", "prefill_chunk_size", "eos_token_id")
#: read from generation_config.json only: in config.json these names have other meanings
_WHISPER = ("language", "task", "return_timestamps", "is_multilingual")
#: keys that transformers 5 ignores with ``_from_model_config``: attributes that its GenerationConfig does not declare
_UNDECLARED = {*_WHISPER, *WhisperTokens.__struct_fields__}
#: true: ``forced_bos_token_id`` is ``bos_token_id``
_OLD_FORCED_BOS = "force_bos_token_to_be_generated"
#: keys without effect on tokens: outputs, caches, speed, versions, padding of batches
_WITHOUT_EFFECT = {
    "transformers_version",
    "_from_model_config",
    "_commit_hash",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "compile_config",
    "disable_compile",
    "prefill_chunk_size",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "pad_token_id",
    "low_memory",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "target_lookbehind",
    "max_matching_ngram_size",
    "assistant_ensemble_weight",
    "alignment_heads",
    "median_filter_width",
    "prev_sot_token_id",
    "continuous_batching_config",
}
#: values that switch an unsupported option off
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "guidance_scale": (1, 1.0),
    "num_beam_groups": (1,),
    "diversity_penalty": (0, 0.0),
    "penalty_alpha": (0, 0.0),
    "token_healing": (False,),
    "use_mtp": (False,),
    "condition_on_prev_tokens": (False,),
}


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Generation options and special tokens of a bundle's configuration files.

    Attributes:
        options: from generation_config.json, else from config.json.
        eos: end tokens.
        start: first token of the decoder of an encoder-decoder.
        whisper: tokens of languages, tasks and timestamps; None if the model is no Whisper.
    """

    options: GenerationConfig = field(default_factory=GenerationConfig)
    eos: tuple[int, ...] = ()
    start: int | None = None
    whisper: WhisperTokens | None = None


def read_stated(directory: Path, manifest: Manifest) -> Stated:
    """Read the configuration files in ``directory``; PosexportError if one is invalid."""
    documents = {name: _document(directory, name) for name in (GENERATION, MODEL) if name in manifest.files}
    named = {key: _named(directory, documents, key) for key in _TOKENS}
    begins = named["decoder_start_token_id"] or named["bos_token_id"]
    if not documents:
        return Stated()
    name = next(iter(documents))  # config.json only where there is no generation_config.json
    try:
        options = _options(documents[name], name)
        whisper = _whisper(documents) if _is_whisper(documents) else None
    except (PosexportError, msgspec.ValidationError) as err:
        raise _unsound(directory / name, err) from err
    return Stated(options=options, eos=named["eos_token_id"], start=next(iter(begins), None), whisper=whisper)


def _document(directory: Path, name: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(locate(directory, name).read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
        raise _unsound(directory / name, err) from err
    return _as_read(document, name)


def _as_read(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys of a file that transformers 5 reads.

    Values from config.json, also those that a generation_config.json was made of (``_from_model_config``), are read by
    `GenerationConfig.__init__` under its declared names only, and under an old name of ``forced_bos_token_id``.
    """
    if name == GENERATION and not document.get("_from_model_config"):
        return dict(document)
    read = {key: value for key, value in document.items() if name == MODEL or key not in _UNDECLARED}
    if read.pop(_OLD_FORCED_BOS, False):
        read["forced_bos_token_id"] = read.get("bos_token_id")
    return read


def _unsound(path: Path, err: Exception) -> PosexportError:
    return PosexportError(f"cannot use {path}: {err}; convert again with a sound one")


def _named(directory: Path, documents: Mapping[str, Mapping[str, Any]], key: str) -> tuple[int, ...]:
    """Token ids under ``key`` in the first file that has them."""
    for name, document in documents.items():
        if (stated := document.get(key)) is not None:
            try:
                return token_ids(stated)
            except PosexportError as err:
                raise _unsound(directory / name, PosexportError(f"{key} is {stated!r:.60}")) from err
    return ()


def _options(document: Mapping[str, Any], name: str) -> GenerationConfig:
    """Generation options of a file. A null key is ignored, as in transformers."""
    skipped = _SEPARATE if name == GENERATION else (*_SEPARATE, *_WHISPER)
    names = [key for key in GenerationConfig.__struct_fields__ if key not in skipped]
    stated = {key: document[key] for key in names if document.get(key) is not None}
    if stated.get("do_sample") is False:
        del stated["do_sample"]  # False together with a temperature is valid in a file
    return GenerationConfig(**stated)


def _is_whisper(documents: Mapping[str, Mapping[str, Any]]) -> bool:
    return documents.get(MODEL, {}).get("model_type") == "whisper" or (
        "no_timestamps_token_id" in documents.get(GENERATION, {})
    )


def _whisper(documents: Mapping[str, Mapping[str, Any]]) -> WhisperTokens:
    stated = dict(documents.get(GENERATION, {}))
    for key in ("forced_decoder_ids", "max_target_positions"):
        if stated.get(key) is None:
            stated[key] = documents.get(MODEL, {}).get(key)
    known = {key: value for key, value in stated.items() if value is not None}
    return msgspec.convert(known, WhisperTokens)


def remarks(files: Mapping[str, Path]) -> list[str]:
    """Remarks on the options of a checkpoint's files that generation does not follow, one sentence each.

    Without generation_config.json the options in config.json count, and its other keys are the model's.

    Args:
        files: the files that the bundle will hold, by name.
    """
    documents: dict[str, dict[str, Any]] = {}
    for name in (GENERATION, MODEL):
        try:
            documents[name] = (
                msgspec.json.decode(files[name].read_bytes(), type=dict[str, Any]) if name in files else {}
            )
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OSError) as err:
            return [f"{name} cannot be read ({err}), so generate will refuse it"]
    name = GENERATION if GENERATION in files else MODEL
    document = _as_read(documents[name], name)
    sentences, unknown = _ignored(documents[name], document, name), list[str]()
    followed = {*GenerationConfig.__struct_fields__, *_TOKENS, *_WITHOUT_EFFECT}
    if _is_whisper(documents):
        followed |= {*WhisperTokens.__struct_fields__}
    for key, value in document.items():
        if value is None or key in followed or value in _NEUTRAL.get(key, ()):
            continue
        if key in UNSUPPORTED:
            sentences.append(f"{name} asks for {key} {_short(value)}, which is not followed: {UNSUPPORTED[key]}")
        elif name == GENERATION:
            unknown.append(key)
    if unknown:
        sentences.append(f"{GENERATION} has {', '.join(unknown)}, which posexport does not know and does not follow")
    try:
        _options(document, name)
    except PosexportError as err:
        sentences.append(f"{name} is unsound, so generate will refuse it: {err}")
    return sentences


def _ignored(document: Mapping[str, Any], read: Mapping[str, Any], name: str) -> list[str]:
    """The remark on the keys that `_as_read` left out of a file."""
    keys = ", ".join(key for key in document if key in _UNDECLARED and key not in read)
    sentence = f"{name} says _from_model_config, so that transformers ignores its {keys}, and so does generate"
    return [sentence] if keys else []


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:37]}..."


def described(followed: Mapping[str, Any]) -> str:
    """The options that came from a file, as one sentence."""
    shown = ", ".join(f"{name} {_listed(value)}" for name, value in followed.items())
    return f"as generation_config.json says: {shown}"


def _listed(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 4:
        return f"of {len(value)}"
    return _short(value)

"""preprocessor_config.json of models of sound: the extractor, its settings, and remarks on what is not followed."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.run.audio import ctc
from posexport.run.audio.extractors import BY_MODEL_TYPE, EXTRACTORS, Extractor

PREPROCESSOR, PROCESSOR, CONFIG = "preprocessor_config.json", "processor_config.json", "config.json"
TYPE = "feature_extractor_type"
#: keys that change nothing in transformers: names, and values that each class computes itself
WITHOUT_EFFECT = {
    TYPE,
    "processor_class",
    "image_processor_type",
    "transformers_version",
    "_commit_hash",
    "mel_filters",
    "n_samples",
    "nb_max_frames",
    "window",
}
#: keys of one class that it keeps and does not read
KEPT = {
    "ASTFeatureExtractor": {"feature_size"},
    "SeamlessM4TFeatureExtractor": set[str](),
    "Wav2Vec2FeatureExtractor": {"feature_size"},
}


def settings_of(files: Mapping[str, Path]) -> dict[str, Any] | None:
    """The extractor's settings among a folder's files by name; None: it has none.

    A ``processor_config.json`` of transformers 5 has priority; it holds them under a key.
    """
    nested = read_json(files, PROCESSOR)
    for key in ("feature_extractor", "audio_processor"):
        if isinstance(nested.get(key), dict):
            return dict(nested[key])
    settings = read_json(files, PREPROCESSOR)
    return settings or None


def type_of(settings: Mapping[str, Any], files: Mapping[str, Path]) -> str | None:
    """Name of the extractor's class; None where no file says one."""
    named = settings.get(TYPE)
    if named is None:
        named = BY_MODEL_TYPE.get(str(read_json(files, CONFIG).get("model_type")))
    return None if named is None else str(named)


def extractor_of(name: str, settings: Mapping[str, Any]) -> Extractor:
    """The extractor of that class with its settings. Raises PosexportError for settings of a wrong kind."""
    kind = EXTRACTORS[name]
    return kind(
        **{field.name: _value(field, settings[field.name]) for field in _fields(kind) if field.name in settings}
    )


def settings_remarks(files: Mapping[str, Path]) -> list[str]:
    """Sentences for settings of a checkpoint's feature extractor that `Session.prepare` does not follow.

    ``files``: the checkpoint's files by name. None for a folder that names no feature extractor.
    """
    settings = settings_of(files)
    if settings is None or (name := type_of(settings, files)) is None:
        return []
    if name not in EXTRACTORS:
        if not {"do_resize", "image_mean", "size"}.isdisjoint(settings):
            return []  # an image processor by its older name, e.g. ViTFeatureExtractor
        return [f"sound is not prepared: {unsupported(name)}"]
    try:
        extractor = extractor_of(name, settings)
    except PosexportError as err:
        return [f"sound is not prepared: {err}"]
    known = {field.name for field in _fields(type(extractor))} | WITHOUT_EFFECT | KEPT.get(name, set())
    unknown = sorted(key for key in settings if key not in known)
    sentences = [f"preprocessor_config.json: {key} is not followed; {name} is not known to read it" for key in unknown]
    return [*sentences, *extractor.remarks()]


def unsupported(name: str) -> str:
    """The sentence that posexport lacks this extractor, with those that it has."""
    return (
        f"preprocessor_config.json says {TYPE} = {name}, and posexport has {', '.join(sorted(EXTRACTORS))}; give "
        "arrays by input name to Session.run"
    )


def _fields(kind: type[Extractor]) -> tuple["dataclasses.Field[Any]", ...]:
    return dataclasses.fields(kind)


def _value(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """A setting of the field's type; whole numbers are also real ones."""
    expected = type(field.default)
    if expected is float and type(value) is int:
        return float(value)
    if expected is int and type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not expected:
        raise PosexportError(
            f"preprocessor_config.json says {field.name} = {value!r:.60}; posexport needs a value of type "
            f"{expected.__name__}, such as {field.default!r}"
        )
    return value


def read_json(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """The object in one of the files; empty where there is none."""
    path = files.get(name)
    if path is None or not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"{name} is no JSON: {err}; repair it, or convert the checkpoint again") from err
    return content if isinstance(content, dict) else {}


TOKENIZER = "tokenizer_config.json"


def remarks(files: Mapping[str, Path]) -> list[str]:
    """Sentences at conversion, by a checkpoint's ``files`` (paths by name); none for a model that takes no sound."""
    settings = settings_of(files)
    tokenizer = read_json(files, TOKENIZER)
    sentences = settings_remarks(files)
    if settings is not None and str(settings.get("processor_class")).endswith("WithLM"):
        sentences.append(
            f"{PREPROCESSOR} says processor_class = {settings['processor_class']}: texts are decoded greedily, without "
            "the language model that transformers takes where pyctcdecode is installed"
        )
    return [*sentences, *ctc.remarks(tokenizer)]

"""Remarks at conversion: settings for sound in a checkpoint's files that the session does not follow."""

from collections.abc import Mapping
from pathlib import Path

from posexport.audio import ctc
from posexport.audio.settings import PREPROCESSOR, read_json, settings_of, settings_remarks

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

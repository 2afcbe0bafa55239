"""Files of a checkpoint that a bundle takes over: what ``AutoTokenizer`` and its like read, and no code."""

from pathlib import Path

from posexport.sources.huggingface.directory import Directory
from posexport.sources.huggingface.sentence_transformers import MODULES

#: beside the weights
_BESIDE = (
    "config.json",
    "generation_config.json",
    # fast tokenizers, and what all tokenizers read
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    # tokenizers by words, by merges and by sentencepiece, under the names that their classes know
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "normalizer.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    # images and sound
    "preprocessor_config.json",
    "processor_config.json",
    # sentence-transformers
    "sentence_bert_config.json",
)
#: at the top
_TOP = (MODULES, "1_Pooling/config.json", "config_sentence_transformers.json")
#: a folder beside the weights with more chat templates, each named as its file
_TEMPLATES = "additional_chat_templates"


def copied(files: Directory, below: str) -> dict[str, Path]:
    """The files that are there, by their names in the bundle. ``below``: the folder of the weights, or empty."""
    templates = sorted(path.name for path in (files.path / below / _TEMPLATES).glob("*.jinja"))
    beside = (*_BESIDE, *(f"{_TEMPLATES}/{name}" for name in templates))
    wanted = {name: f"{below}{name}" for name in beside} | {name: name for name in _TOP}
    found = {name: files.find(place) for name, place in wanted.items()}
    return {name: path for name, path in found.items() if path is not None}

"""Files of a checkpoint that a bundle takes over: what ``AutoTokenizer`` and its like read, and no code."""

from pathlib import Path

from posexport.checkpoints.directory import Directory
from posexport.checkpoints.folder_kind import folder_kinds
from posexport.checkpoints.hub_cache import module_paths

#: rules of sentence-transformers next to the weights: the first file that exists counts, as in the library
TEXTS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
#: files next to the weights
BESIDE = (
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
    *TEXTS,
)
#: at the top: sentence-transformers and colbert-ai
TOP = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "artifact.metadata")
#: in the folders of sentence-transformers' other modules, for example projections after the pooling
OF_MODULE = ("config.json", "model.safetensors")
#: a folder next to the weights with more chat templates, each named as its file
TEMPLATES = "additional_chat_templates"


def configurations() -> list[str]:
    """The configurations of other libraries' folders, next to the weights too."""
    return [kind.config for kind in folder_kinds().values() if kind.config]


def bundle_files(files: Directory, below: str) -> dict[str, Path]:
    """The files that are there, by their names in the bundle. ``below``: the folder of the weights, or empty."""
    templates = sorted(path.name for path in (files.path / below / TEMPLATES).glob("*.jinja"))
    beside = (*BESIDE, *configurations(), *(f"{TEMPLATES}/{name}" for name in templates))
    sources = {name: f"{below}{name}" for name in beside} | {name: name for name in (*TOP, *_of_modules(files, below))}
    paths = {name: files.find(stored) for name, stored in sources.items()}
    return {name: path for name, path in paths.items() if path is not None}


def _of_modules(files: Directory, below: str) -> list[str]:
    """Files in the folders that modules.json names, but for the transformer's."""
    modules = files.json("modules.json") if files.find("modules.json") is not None else None
    folders = [f"{path}/" for path in module_paths(modules) if path]
    return [folder + name for folder in folders if folder != below for name in OF_MODULE]

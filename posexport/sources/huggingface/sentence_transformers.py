"""Reads the modules.json of sentence-transformers: a transformer, a pooling, a normalisation, and nothing else."""

from pathlib import PurePosixPath
from typing import Any, get_args

from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.directory import Directory
from posexport.sources.huggingface.pooling import Mode, Pooling

MODULES = "modules.json"
_PACKAGE = "sentence_transformers."
#: the flags that versions before 6 write
_POOLINGS: dict[str, Mode] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def read(directory: Directory) -> Pooling:
    """What modules.json describes; PosexportError for any other module or pooling."""
    label = f"{directory.path}/{MODULES}"
    modules = directory.json(MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise PosexportError(f"{label} is not a list of modules, as sentence-transformers writes it")
    names = [_name(label, module) for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise PosexportError(
            f"{label} lists {', '.join(names) or 'nothing'}; only Transformer, Pooling and then Normalize or nothing "
            f"is supported, use --task features for the transformer alone"
        )
    below = _folder(label, modules[0])
    config = Config(directory, f"{_folder(label, modules[1])}config.json")
    mode = _mode(config)
    _check_states(directory, below)
    files = [MODULES, f"{_folder(label, modules[1])}config.json"]
    key = "embedding_dimension" if "embedding_dimension" in config.values else "word_embedding_dimension"
    width = config.size(key)
    remarks = _remarks(directory, below)
    return Pooling(mode, len(names) == 3, width, config.label, below, files, remarks, key)


def _mode(config: Config) -> Mode:
    """``pooling_mode``, as version 6 writes it, or the one flag of ``pooling_mode_*`` that is set."""
    flags = sorted(key for key in config.values if key.startswith("pooling_mode_") and config.flag(key, False))
    named = config.values.get("pooling_mode")
    if named is not None:
        modes = named if isinstance(named, list) else [named]
        if len(modes) != 1 or modes[0] not in get_args(Mode):
            raise PosexportError(
                f"{config.label} says pooling_mode = {named!r:.80}; supported is exactly one of "
                f"{', '.join(get_args(Mode))}"
            )
        mode: Mode = modes[0]
        if any(_POOLINGS.get(flag) != mode for flag in flags):
            raise PosexportError(
                f"{config.label} says pooling_mode = {mode} and sets {', '.join(flags)}, which is another pooling; "
                f"remove one of them"
            )
        return mode
    if len(flags) != 1 or flags[0] not in _POOLINGS:
        raise PosexportError(
            f"{config.label} chooses {', '.join(flags) or 'no pooling'}; supported is exactly one of "
            f"{', '.join(_POOLINGS)}, or pooling_mode = {' or '.join(get_args(Mode))}"
        )
    return _POOLINGS[flags[0]]


def _check_states(directory: Directory, below: str) -> None:
    """PosexportError where what is pooled is not the last hidden states; version 6 can say so."""
    name = f"{below}sentence_bert_config.json"
    if directory.find(name) is None:
        return
    config = Config(directory, name)
    task = config.values.get("transformer_task", "feature-extraction")
    modes = config.values.get("modality_config")
    text = modes.get("text") if isinstance(modes, dict) else None
    output = text.get("method_output_name") if isinstance(text, dict) else None
    if task != "feature-extraction" or (modes is not None and output != "last_hidden_state"):
        raise PosexportError(
            f"{config.label} says transformer_task = {task!r:.60}, modality_config = {modes!r:.120}; only the pooling "
            f"of the last_hidden_state of texts is read, use --task features for the transformer alone"
        )


def _name(label: str, module: dict[str, Any]) -> str:
    kind = module.get("type")
    if not isinstance(kind, str) or not kind.startswith(_PACKAGE):
        raise PosexportError(
            f"{label} lists a module of type {kind!r:.80}; only those of sentence-transformers itself are read, "
            f"code from a checkpoint is never executed"
        )
    return kind.rpartition(".")[2]


def _folder(label: str, module: dict[str, Any]) -> str:
    path = module.get("path", "")
    if not isinstance(path, str):
        raise PosexportError(f"{label} says path = {path!r:.60}; it must be the name of a folder")
    return "" if path in ("", ".") else f"{PurePosixPath(path)}/"


def _remarks(directory: Directory, below: str) -> list[str]:
    """What sentence-transformers does to texts before the model, which a model cannot hold."""
    remarks = []
    for name in dict.fromkeys((f"{below}sentence_bert_config.json", "config_sentence_transformers.json")):
        if directory.find(name) is None:
            continue
        config = Config(directory, name)
        if config.values.get("max_seq_length") is not None:
            longest = config.size("max_seq_length")
            remarks.append(
                f"sentence-transformers cuts texts at {longest} tokens; the model itself takes what its table holds"
            )
        if config.values.get("do_lower_case"):
            remarks.append("sentence-transformers lowers the case of texts first; do so before the tokenizer")
        if config.values.get("default_prompt_name"):
            remarks.append("sentence-transformers puts a prompt before texts by default; the bundle does not")
    return remarks

"""Reads the modules.json of sentence-transformers: a transformer, a pooling, then projections and normalisations."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from posexport.checkpoints import late_interaction
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling, Step
from posexport.checkpoints.text_rules import optional, rule_files, text_rules, texts_config
from posexport.errors import PosexportError
from posexport.nn.pooling import MODES, DenseConfig, LayerNormConfig, Mode, SpladeConfig

MODULES = "modules.json"
_PACKAGE = "sentence_transformers."
#: PyLate's module, read like sentence-transformers' Dense
_PYLATE_DENSE = "pylate.models.Dense.Dense"
#: the flags that versions before 6 write, in the order in which several are concatenated
_POOLINGS: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
Vectors = Literal["sentence", "token", "scores"]
#: modules that may follow a pooling
STEPS = ("Dense", "LayerNorm", "Normalize", "Dropout")
#: classes of torch.nn to names of activations; None: identity
_CLASSES: dict[str, str | None] = {"Identity": None, "GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "Tanh": "tanh"}


def read(directory: Directory) -> Pooling:
    """The pooling and projections in modules.json. Raises PosexportError for modules that are not supported."""
    label = f"{directory.path}/{MODULES}"
    modules = modules_of(directory)
    names, folders = [name for name, _ in modules], [folder for _, folder in modules]
    if names in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        return _splade(directory, folders)
    if _is_late_interaction(names):
        return _late_interaction(directory, modules)
    if "StaticEmbedding" in names:
        raise PosexportError(
            f"{label} lists StaticEmbedding, which is read from the folders of model2vec only; save it there with "
            "StaticModel.from_pretrained(DIR).save_pretrained(...)"
        )
    if names[:2] != ["Transformer", "Pooling"] or set(names[2:]) - set(STEPS):
        raise PosexportError(
            f"{label} lists {', '.join(names) or 'nothing'}; only Transformer, Pooling and then any of "
            f"{', '.join(STEPS)}, or SpladePooling, or Dense and MultiVectorMask without a pooling, are supported, "
            f"use --task features for the transformer alone"
        )
    return of_pooling(directory, modules)


def of_pooling(directory: Directory, modules: Sequence[tuple[str, str]], *, scores: bool = False) -> Pooling:
    """A transformer, a pooling and its projections; ``scores``: the last projection computes scores."""
    below = modules[0][1]
    folders = [folder for _, folder in modules]
    config = Config(directory, f"{folders[1]}config.json")
    _check_states(directory, below)
    key = "embedding_dimension" if "embedding_dimension" in config.values else "word_embedding_dimension"
    modes, width = _modes(config), config.size(key)
    steps = _steps(directory, modules[2:], width * len(modes), of="scores" if scores else "sentence")
    files = [MODULES, config_name(folders[1]), *(config_name(step.folder) for step in steps if step.config is not None)]
    rules = text_rules(directory, below, prompt_pooled=config.flag("include_prompt", True))
    return Pooling(
        modes=modes,
        steps=steps,
        width=width,
        width_key=key,
        label=config.label,
        rules=rules,
        below=below,
        files=[*files, *rule_files(directory, below)],
        scores=scores,
        first_kept=_pads_left(directory, below),
    )


def _pads_left(directory: Directory, below: str) -> bool:
    tokenizer = optional(directory, f"{below}tokenizer_config.json")
    return tokenizer is not None and tokenizer.values.get("padding_side") == "left"


def modules_of(directory: Directory) -> list[tuple[str, str]]:
    """Names and folders of the modules. Raises PosexportError for classes outside sentence-transformers."""
    label = f"{directory.path}/{MODULES}"
    modules = directory.json(MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise PosexportError(f"{label} is not a list of modules, as sentence-transformers writes it")
    return [(_name(label, module), _folder(label, module)) for module in modules]


def _is_late_interaction(names: Sequence[str]) -> bool:
    """Whether the modules compute token vectors: a projection without a pooling."""
    known = {"Dense", "Normalize", "Dropout", late_interaction.MASK_MODULE}
    return names[:1] == ["Transformer"] and "Dense" in names and not set(names[1:]) - known


def _late_interaction(directory: Directory, modules: Sequence[tuple[str, str]]) -> Pooling:
    """The modules of late interaction (ColBERT): token vectors."""
    _check_states(directory, modules[0][1])
    first = next(folder for name, folder in modules if name == "Dense")
    steps = _steps(directory, modules[1:], Config(directory, config_name(first)).size("in_features"), of="token")
    files = [MODULES, *(config_name(folder) for name, folder in modules if name in ("Dense", "MultiVectorMask"))]
    return late_interaction.of_modules(directory, modules, steps, files)


def _splade(directory: Directory, folders: Sequence[str]) -> Pooling:
    """The modules of SPLADE: one weight for each word of the vocabulary."""
    config = Config(directory, config_name(folders[1]))
    strategy, activation = config.text("pooling_strategy", "max"), config.text("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise PosexportError(
            f"{config.label} says pooling_strategy = {strategy!r:.40}, activation_function = {activation!r:.40}; known "
            "are max and sum, relu and log1p_relu"
        )
    return Pooling(
        modes=(),
        steps=(),
        width=0,
        width_key="",
        label=config.label,
        rules=text_rules(directory, folders[0], prompt_pooled=True, default_similarity="dot"),
        below=folders[0],
        files=[MODULES, config_name(folders[1])],
        splade=SpladeConfig(summed=strategy == "sum", twice=activation == "log1p_relu"),
    )


def config_name(folder: str) -> str:
    return f"{folder}config.json"


def _modes(config: Config) -> list[Mode]:
    """The modes of ``pooling_mode`` (version 6) or of the flags ``pooling_mode_*``."""
    flags = {key for key in config.values if key.startswith("pooling_mode_") and config.flag(key, False)}
    if unknown := sorted(flags - set(_POOLINGS)):
        raise PosexportError(f"{config.label} chooses {', '.join(unknown)}; supported are {', '.join(_POOLINGS)}")
    flagged = [mode for flag, mode in _POOLINGS.items() if flag in flags]
    named = config.values.get("pooling_mode")
    if named is None:
        if not flagged:
            raise PosexportError(
                f"{config.label} chooses no pooling; set one of {', '.join(_POOLINGS)}, or pooling_mode"
            )
        return flagged
    modes = named if isinstance(named, list) else [named]
    if not modes or any(mode not in MODES for mode in modes):
        raise PosexportError(f"{config.label} says pooling_mode = {named!r:.80}; supported are {', '.join(MODES)}")
    if flagged and set(flagged) != set(modes):
        raise PosexportError(
            f"{config.label} says pooling_mode = {', '.join(modes)} and sets {', '.join(sorted(flags))}, which is "
            f"another pooling; remove one of them"
        )
    return modes


def _steps(
    directory: Directory, modules: Sequence[tuple[str, str]], width: int, *, of: Vectors = "sentence"
) -> list[Step]:
    """The modules after the pooling, or after the hidden states for token vectors. Widths must match."""
    steps = []
    for place, (name, folder) in enumerate(modules):
        if name == "Normalize":
            steps.append(Step(dense=None))
        elif name == "LayerNorm":
            config = Config(directory, config_name(folder))
            if (size := config.size("dimension")) != width:
                raise PosexportError(f"{config.label} says dimension = {size}; what comes before has {width}")
            steps.append(Step(dense=None, norm=LayerNormConfig(size=size), folder=folder))
        elif name == "Dense":
            config = Config(directory, config_name(folder))
            dense = _dense(config, of, last=place == len(modules) - 1)
            if dense.inner != width:
                raise PosexportError(f"{config.label} says in_features = {dense.inner}; what comes before has {width}")
            steps.append(Step(dense=dense, folder=folder))
            width = dense.outer
    return steps


def _dense(config: Config, of: Vectors, *, last: bool) -> DenseConfig:
    needed = "token_embeddings" if of == "token" else "sentence_embedding"
    read = config.text("module_input_name", needed)
    output = read if config.values.get("module_output_name") is None else config.text("module_output_name")
    to = "scores" if of == "scores" and last else needed
    if (read, output) != (needed, to):
        raise PosexportError(
            f"{config.label} projects {read} to {output}; only {needed} to {to} is computed here, use --task features "
            "for the transformer alone"
        )
    return DenseConfig(
        inner=config.size("in_features"),
        outer=config.size("out_features"),
        bias=config.flag("bias", True),
        activation=_activation(config),
        skip=config.flag("use_residual", False),
    )


def _activation(config: Config) -> str | None:
    """The name of the torch.nn activation, tanh by default. Other code is never executed."""
    path = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    name = path.rpartition(".")[2]
    if not path.startswith("torch.nn.") or name not in _CLASSES:
        raise PosexportError(
            f"{config.label} says activation_function = {path!r:.80}; supported are {', '.join(_CLASSES)} of torch.nn"
        )
    return _CLASSES[name]


def _check_states(directory: Directory, below: str) -> None:
    """Raises PosexportError unless the last hidden states of plain texts are pooled (keys of version 6)."""
    config = texts_config(directory, below)
    if config is None:
        return
    task = config.values.get("transformer_task", "feature-extraction")
    modes = config.values.get("modality_config")
    text = modes.get("text") if isinstance(modes, dict) else None
    if isinstance(modes, dict) and "message" in modes:
        raise PosexportError(
            f"{config.label} says that texts are messages of a chat template (modality_config.message), which is not "
            "done to texts here before they are pooled; remove it if the model was trained on plain texts, or use "
            "--task features"
        )
    output = text.get("method_output_name") if isinstance(text, dict) else None
    if task != "feature-extraction" or (modes is not None and output != "last_hidden_state"):
        raise PosexportError(
            f"{config.label} says transformer_task = {task!r:.60}, modality_config = {modes!r:.120}; only the pooling "
            f"of the last_hidden_state of texts is read, use --task features for the transformer alone"
        )


def _name(label: str, module: dict[str, Any]) -> str:
    kind = module.get("type")
    if kind == _PYLATE_DENSE:
        return "Dense"
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

"""A checkpoint directory whose type transformers defines, as a source."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from posexport.checkpoints import own_code, scoring
from posexport.checkpoints.adapter import Adapter
from posexport.checkpoints.config import Config
from posexport.checkpoints.copied import copied
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling
from posexport.checkpoints.weights import Weights, open_weights, sha256
from posexport.errors import PosexportError
from posexport.modules.live_module import source_of_module
from posexport.sources.source import Source
from posexport.through import heads, library, refusals, seq2seq, vision
from posexport.through.agreement import computed_by_ours
from posexport.through.decoder import decoder_source
from posexport.through.tasks import (
    AUDIO,
    FEATURES,
    GENERATION,
    IMAGE_TEXT,
    SEQ2SEQ,
    TASKS,
    ZERO_SHOT,
    Task,
    task_named,
    task_of,
)
from posexport.through.wrapped import POSITIONS, SOUND, Wrapped, limits_of, taken, wrapped


def through_source(
    files: Directory,
    config: Config,
    *,
    task: str | None,
    allow_pickle: bool,
    adapted: Adapter | None = None,
    below: str = "",
    pooling: Pooling | None = None,
    answers: scoring.Answers | None = None,
) -> Source:
    """The checkpoint in ``files``, for ``task`` or the one that its class is for. Executes nothing from the directory.

    Args:
        files: its directory.
        config: its config.json.
        task: of ``posexport list tasks``; None: of its class.
        allow_pickle: weights may be .bin files.
        adapted: the adapter that is merged into it.
        below: the folder of config.json and weights, empty or ending in ``/``.
        pooling: what makes vectors or scores of its states, where that is asked.
        answers: of a model that generates text, the tokens whose logits are a score; None: "yes" and "no".

    Raises:
        PosexportError: neither transformers nor posexport knows it, or it cannot be converted.
    """
    remarks = refusals.check(config)
    transformers = library.library(f"{refusals.says_type(config)}, which")
    chosen, on_task = _task(config, task) if pooling is None else (_below_head(pooling), [])
    remarks = [*remarks, *on_task]
    with library.quiet(transformers):
        weights = open_weights(files, below, allow_pickle=allow_pickle)
        for folder in [] if pooling is None else pooling.folders:
            weights = weights.beside(folder, open_weights(files, folder, allow_pickle=allow_pickle))
        model = _load(transformers, files.path / below, config, chosen)
        remarks += _unread_keys(config, model.config)
        if adapted is not None:
            weights = replace(weights, files=weights.files | adapted.files)
            remarks = [*remarks, adapted.remark]
            adapted.merge_into(model)
        if pooling is not None:
            source, own = _pooled(files, config, model, pooling, weights)
        elif task == scoring.TEXT_RANKING:
            source, own = _ranked(files, config, model, answers or scoring.yes_or_no(files, below))
        else:
            source, own = _MAKERS.get(chosen.name, _alone)(files, config, model, chosen)
        if any(spec.role == "tokens" for spec in source.inputs):
            rules = scoring.pair_rules(files, config, below, source.task, answers=answers)
            source = msgspec.structs.replace(source, pair_rules=rules)
    return msgspec.structs.replace(
        source,
        kind="transformers",
        sha256=sha256(files, weights, [f"{below}config.json", *([] if pooling is None else pooling.files)]),
        files=copied(files, below) | ({} if adapted is None else copied(Directory(Path(adapted.label)), "")),
        remarks=[*remarks, *own, *library.remarks(transformers.__version__), *source.remarks],
        tools={"transformers": transformers.__version__},
    )


def _alone(files: Directory, config: Config, model: Any, task: Task) -> tuple[Source, list[str]]:
    """The source of a model that is one graph, and remarks on its attention."""
    module, own = _module(config, model, task)
    source = _of_module(files, config, module)
    sound = task.name == "sequence-classification" and SOUND in taken(model)
    source = msgspec.structs.replace(source, task=AUDIO.name if sound else task.name)
    if task is GENERATION:
        source = decoder_source(source, model.config.get_text_config().num_hidden_layers)
    return source, own


def _pooled(
    files: Directory, config: Config, model: Any, pooling: Pooling, weights: Weights
) -> tuple[Source, list[str]]:
    """The source of a model whose states become vectors of texts, and remarks on its attention."""
    _without_cache(model)
    module = heads.pooled(config.label, model, pooling, weights)
    own = computed_by_ours(config.label, module)
    source = _of_module(files, config, module)
    rules = scoring.pair_rules(files, config, pooling.below, pooling.task) if pooling.scores else None
    text_rules = None if pooling.scores else pooling.rules
    return msgspec.structs.replace(source, task=pooling.task, text_rules=text_rules, pair_rules=rules), own


def _of_module(files: Directory, config: Config, module: Wrapped) -> Source:
    source = source_of_module(str(files.path), module, *module.told, label=config.text("model_type"), fingerprint=b"")
    return msgspec.structs.replace(source, kind="transformers", limits=limits_of(source, module))


def _ranked(files: Directory, config: Config, model: Any, answers: scoring.Answers) -> tuple[Source, list[str]]:
    """The source of a model that generates text as one that scores, and remarks on its attention."""
    _without_cache(model)
    module = heads.ranked(config.label, model, answers)
    own = computed_by_ours(config.label, module)
    return msgspec.structs.replace(_of_module(files, config, module), task=scoring.TEXT_RANKING), own


def _below_head(pooling: Pooling) -> Task:
    """The task of the model that a pooling stands on."""
    task = task_named(pooling.built_as)
    assert task is not None
    return task


#: by task, what makes a source of several graphs
_MAKERS: dict[str, Callable[[Directory, Config, Any, Task], tuple[Source, list[str]]]] = {
    SEQ2SEQ.name: seq2seq.source,
    IMAGE_TEXT.name: vision.source,
}


def _task(config: Config, named: str | None) -> tuple[Task, list[str]]:
    """The task, and remarks on how it was chosen."""
    kind, architecture = config.text("model_type"), config.architecture()
    known = ", ".join(dict.fromkeys(task.name for task in TASKS))
    if named is not None:
        task = GENERATION if named == scoring.TEXT_RANKING else task_named(named)
        if task is None:
            raise PosexportError(
                f"{config.label}: {kind} is not converted for {named} through transformers; it is for {known}"
            )
        of_class = None if architecture is None else task_of(architecture)
        return of_class if of_class is not None and of_class.name == task.name else task, []
    if architecture is None:
        return FEATURES, [f"{config.label} names no architectures; taken for the task features"]
    if "vision_config" in config.values and task_of(architecture) is SEQ2SEQ:
        return IMAGE_TEXT, []
    towers = {"text_config", "vision_config"} <= set(config.values)
    task = ZERO_SHOT if towers and architecture.endswith("Model") else task_of(architecture)
    if task is None:
        raise PosexportError(
            f"{config.label} says architectures = {architecture}, which is no task here; choose --task out of {known}"
        )
    return task, []


def _load(transformers: Any, folder: Path, config: Config, task: Task) -> Any:
    """The model of transformers, in float32, with every weight of the checkpoint."""
    kind, path = config.text("model_type"), str(folder)
    try:
        settings = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as err:
        known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
        if kind not in known:
            raise PosexportError(refusals.unknown(config, transformers.__version__)) from err
        raise _failed(config, transformers, err) from err
    cls = _class(transformers, settings, config, task)
    try:
        model, loading = cls.from_pretrained(
            path,
            config=settings,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as err:
        raise _failed(config, transformers, err) from err
    if missing := sorted({*loading["missing_keys"], *(str(key[0]) for key in loading["mismatched_keys"])}):
        if not all(".pooler." in f".{name}" for name in missing):
            raise PosexportError(
                f"{config.label}: the checkpoint has no {missing[0]} for {cls.__name__}"
                f"{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}; choose the task that it was "
                "trained for with --task"
            )
        _without_pooler(model)
    if config.values.get("auto_map") and (unread := _unread(model, loading["unexpected_keys"])):
        raise PosexportError(
            f"{config.label} names the author's code (auto_map), which is never run, and the checkpoint has tensors "
            f"that {cls.__name__} of transformers does not read: {', '.join(unread[:3])}; that class may compute "
            "another model, so it is not converted"
        )
    return model.eval()


def _unread_keys(config: Config, settings: Any) -> list[str]:
    """A remark on keys of config.json that only the author's code reads; ``settings``: transformers' configuration."""
    kind = type(settings)
    known = {name for cls in kind.__mro__ for name in getattr(cls, "__annotations__", {})} | set(kind.attribute_map)
    keys = [key for key in config.values if not (key in own_code.IDLE or key in known or hasattr(kind, key))]
    if not keys or not config.values.get("auto_map"):
        return []
    return [f"config.json: {kind.__name__} of transformers does not read {', '.join(sorted(keys))}"]


def _unread(model: nn.Module, unexpected: Iterable[str]) -> list[str]:
    """Tensors of the checkpoint inside the base model that it does not read; heads of other tasks are not among them.

    ``unexpected``: names of tensors, with or without ``base_model_prefix``.
    """
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()}  # type: ignore[union-attr]
    return sorted(name for name in unexpected if name.removeprefix(prefix).partition(".")[0] in parts)


def _class(transformers: Any, settings: Any, config: Config, task: Task) -> Any:
    """The class of the checkpoint's architecture, or the type's for another task."""
    architecture = config.architecture()
    if architecture is not None and architecture.endswith(task.ends) and hasattr(transformers, architecture):
        return getattr(transformers, architecture)
    auto = getattr(transformers, task.auto)
    if type(settings) not in auto._model_mapping:  # noqa: SLF001 (the public way raises a list of all types)
        raise PosexportError(
            f"{config.label}: transformers has no model of {config.text('model_type')} for {task.name}"
        )
    return auto


def _failed(config: Config, transformers: Any, err: Exception) -> PosexportError:
    text = " ".join(str(err).split())
    return PosexportError(
        f"{config.label}: transformers {transformers.__version__} cannot load it: {type(err).__name__}: {text[:300]}"
    )


def _without_pooler(model: nn.Module) -> None:
    """A pooler that the checkpoint has no weights for is not computed."""
    for part in [*model.modules()]:
        if getattr(part, "pooler", None) is not None:
            setattr(part, "pooler", None)  # noqa: B010 (no type knows it)


def _without_cache(model: Any) -> None:
    model.config.use_cache = model.config.get_text_config().use_cache = False


def _module(config: Config, model: Any, task: Task) -> tuple[Wrapped, list[str]]:
    """The model by its inputs, and remarks on who computes its attention (`computed_by_ours`)."""
    _without_cache(model)
    numbered = task is GENERATION
    if numbered and POSITIONS not in taken(model):
        raise PosexportError(
            f"{config.label}: {type(model).__name__} takes no {POSITIONS}, which a KV cache needs; use --task features"
        )
    module = wrapped(config.label, model, task, numbered=numbered).eval()
    return module, computed_by_ours(config.label, module)

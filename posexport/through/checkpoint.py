"""Makes the model of a checkpoint by the class of transformers for its type."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from posexport.checkpoints import custom_code, scoring
from posexport.checkpoints.config import Config
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.pooling import Pooling
from posexport.errors import PosexportError
from posexport.sources.source import Model
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
from posexport.through.wrapped import POSITIONS, SOUND, Wrapped, by_trial, taken, wrapped


def make(checkpoint: Checkpoint) -> Model:
    """The model of transformers with the checkpoint's weights, its adapter and its head.

    Raises:
        PosexportError: neither transformers nor posexport knows it, or it cannot be converted.
    """
    config, pooling = checkpoint.config, checkpoint.pooling
    remarks = refusals.check(config)
    transformers = library.library(f"{refusals.says_type(config)}, which")
    if pooling is None:
        task, on_task = _task(config, checkpoint.task)
    else:
        task, on_task = _below_head(pooling), []
    with library.quiet(transformers):
        checkpoint.weights  # noqa: B018  # opened before the library opens them, for errors of one sentence
        model = _load(transformers, checkpoint.files.path / checkpoint.below, config, task)
        unread = _unread_keys(config, model.config)
        if checkpoint.adapter is not None:
            checkpoint.adapter.merge_into(model)
        if pooling is not None:
            made = _pooled(checkpoint, model, pooling)
        elif checkpoint.task == scoring.TEXT_RANKING:
            made = _ranked(checkpoint, model)
        else:
            made = _MAKERS.get(task.name, _alone)(checkpoint, model, task)
    return msgspec.structs.replace(
        made,
        remarks=[*remarks, *on_task, *unread, *library.remarks(transformers.__version__), *made.remarks],
        tools={"transformers": transformers.__version__},
    )


MAKER = Maker("transformers", make)


def _alone(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """A model that is one graph."""
    module, remarks = _module(checkpoint.config, model, task)
    sound = task.name == "sequence-classification" and SOUND in taken(model)
    made = by_trial(checkpoint, module, AUDIO.name if sound else task.name, remarks)
    return decoder_source(made, model.config.get_text_config().num_hidden_layers) if task is GENERATION else made


def _pooled(checkpoint: Checkpoint, model: Any, pooling: Pooling) -> Model:
    """A model with a pooling: vectors of texts, or scores."""
    _without_cache(model)
    label = checkpoint.config.label
    module = heads.pooled(label, model, pooling, checkpoint.weights)
    return by_trial(checkpoint, module, pooling.task, computed_by_ours(label, module))


def _ranked(checkpoint: Checkpoint, model: Any) -> Model:
    """A model that generates text, as one that scores."""
    _without_cache(model)
    label = checkpoint.config.label
    module = heads.ranked(label, model, checkpoint.answers or scoring.yes_or_no(checkpoint.files, checkpoint.below))
    return by_trial(checkpoint, module, scoring.TEXT_RANKING, computed_by_ours(label, module))


def _below_head(pooling: Pooling) -> Task:
    """The task of the model below a pooling."""
    task = task_named(pooling.built_as)
    assert task is not None
    return task


#: by task, what makes a model of several graphs
_MAKERS: dict[str, Callable[[Checkpoint, Any, Task], Model]] = {
    SEQ2SEQ.name: seq2seq.make,
    IMAGE_TEXT.name: vision.make,
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
    keys = [key for key in config.values if not (key in custom_code.IDLE or key in known or hasattr(kind, key))]
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

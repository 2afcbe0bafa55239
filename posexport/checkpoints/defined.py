"""Builds the definition of a checkpoint's ``model_type`` and loads the checkpoint's weights into it."""

from posexport.base.system.extras import is_installed
from posexport.checkpoints import (
    adapters,
    assign,
    bidirectional,
    custom_code,
    heads,
    label_counts,
    missing_type,
    scoring,
)
from posexport.checkpoints.config import Config
from posexport.checkpoints.differences import difference_remarks
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import EMBEDDING_TASKS, Checkpoint
from posexport.checkpoints.packed.config import KEY, layout_of
from posexport.errors import PosexportError
from posexport.sources.source import Model, model_of


def make(checkpoint: Checkpoint) -> Model:
    """The definition of the checkpoint's type with its weights, its adapter and its head.

    Raises:
        PosexportError: its configuration or weights do not fit the definition.
    """
    config, pooling = checkpoint.config, checkpoint.pooling
    family = _family(checkpoint)
    config.spellings = family.spellings
    config.refuse_unsupported(family.allowed if layout_of(config) is None else {*family.allowed, KEY})
    task, remarks = _task(checkpoint.task, config, family)
    config.label_count = label_counts.by_weight(checkpoint)
    # the definition, without weights, and where each of them is in the file
    with custom_code.explained(config):
        plan = family.build(config, scoring.built_as(task, family) if pooling is None else pooling.built_as)
        plan = bidirectional.as_stated(plan, config, family, task)
    remarks += custom_code.check(config)
    # the head that modules.json or the task puts on it
    if pooling is not None:
        plan = heads.with_pooling(plan, pooling, family.model_type)
    else:
        plan = heads.with_score(plan, checkpoint, family, task)
    weights = checkpoint.weights if checkpoint.adapter is None else checkpoint.adapter.merged(checkpoint.weights)
    names = assign.names_of(weights, family)
    if task == "features":
        plan = heads.with_pooler(plan, family, names.stored)
    # every tensor must be used, and every parameter filled
    with custom_code.explained(config):
        remarks += assign.check(plan, weights, names, family, task=task)
    remarks += [*names.remarks(), *assign.fill(plan, weights, names), *config.remarks]
    plan = adapters.with_adapters(plan, weights, names, checkpoint.adapters)
    remarks += difference_remarks(family, plan.model)
    model = model_of(plan.model, task, longest=plan.longest, remarks=remarks)
    return label_counts.with_names(model, config, config.label_count)


MAKER = Maker("huggingface", make)


def _family(checkpoint: Checkpoint) -> Family:
    if "model_type" not in checkpoint.config.values:
        raise PosexportError(missing_type.sentence(checkpoint))
    return FAMILIES[checkpoint.config.text("model_type")]


def _task(task: str | None, config: Config, family: Family) -> tuple[str, list[str]]:
    """The task, and remarks on how it was chosen."""
    known = family.all_tasks
    if task not in (None, *EMBEDDING_TASKS, *known):
        raise PosexportError(
            f"{config.label}: {family.model_type} has no task {task}; it has {', '.join(known)}{_more(family)}"
        )
    if task is not None:
        return task, []
    # the task of the class that config.json names
    architecture = config.architecture()
    if architecture is None:
        return "features", [f"{config.label} names no architectures; taken for the task features"]
    task = family.task_of(architecture)
    if task is None:
        raise PosexportError(
            f"{config.label} says architectures = {architecture}, which is no task here; "
            f"{family.advice or 'choose --task out of ' + ', '.join(known)}{_more(family)}"
        )
    return task, [f"{architecture} is taken for the task {task}"] if architecture.endswith("ForPreTraining") else []


def _more(family: Family) -> str:
    """The end of a sentence about what the definition lacks, where transformers' class might do."""
    missing = not family.advice and not is_installed("transformers")
    return "; transformers' classes are converted with pip install 'posexport[transformers]'" if missing else ""

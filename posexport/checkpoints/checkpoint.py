"""A Hugging Face checkpoint directory as a source."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from posexport.checkpoints import (
    adapter,
    assign,
    bidirectional,
    cross_encoder,
    late_interaction,
    module_keys,
    own_code,
    scoring,
    sentence_transformers,
)
from posexport.checkpoints.config import Config
from posexport.checkpoints.copied import copied
from posexport.checkpoints.differences import difference_remarks
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.families.family import TASKS, Family
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.pooler import with_pooler
from posexport.checkpoints.pooling import Pooling, with_pooling
from posexport.checkpoints.sentence_transformers import MODULES
from posexport.checkpoints.weights import open_weights, sha256
from posexport.errors import PosexportError
from posexport.options.recipe import DefinitionName
from posexport.options.suggest import did_you_mean
from posexport.sources.of_definition import source_of
from posexport.sources.source import Source

#: tasks whose graphs end in vectors of texts
EMBEDDING_TASKS = ("sentence-embedding", "token-embedding")
SCORES = "sequence-classification"


def checkpoint_source(
    directory: Path,
    *,
    task: str | None,
    allow_pickle: bool,
    definition: DefinitionName = "paper",
) -> Source:
    """The checkpoint in ``directory``, for ``task`` or the one that its files name.

    ``definition``: ``released`` computes what transformers' code does where it differs from the paper
    (docs/papers-and-code.md); ``transformers`` takes that library's model also of a type that posexport defines.
    Needs little more memory than the float32 weights. Executes nothing from the directory.

    Raises:
        PosexportError: what is wrong with the directory, its configuration or its weights, in one sentence.
    """
    files = Directory(directory)
    if task is not None and task not in TASKS:
        raise PosexportError(f"unknown task {task!r}; {did_you_mean(task, TASKS, 'known: ' + ', '.join(TASKS))}")
    adapted = adapter.read(files, allow_pickle=allow_pickle)
    own = files
    if adapted is not None:
        files, task = adapted.base, task or adapted.task
    pooling = None
    below = ""
    ranker = cross_encoder.read(files) if task in (None, scoring.TEXT_RANKING, SCORES) else None
    if ranker is not None and task in (None, ranker.task):
        pooling, below, task = ranker.pooling, ranker.below, task or ranker.task
    embeds = files.find(MODULES) is not None and not scoring.is_cross_encoder(files)
    if embeds and task in (None, *EMBEDDING_TASKS):
        pooling = sentence_transformers.read(files)
        below = pooling.below
    config = Config(files, f"{below}config.json", released=definition == "released")
    if not embeds and task in (None, "token-embedding") and config.architecture() == late_interaction.ARCHITECTURE:
        pooling = late_interaction.of_colbert(files, config)
    answers = None if ranker is None else ranker.answers
    unread = module_keys.remarks(files) if pooling is not None or ranker is not None else []
    if definition == "transformers" or _is_foreign(config):
        through_source: Any = import_module("posexport.through.checkpoint").through_source
        _check_embeds(task, config, pooling)
        source: Source = through_source(
            files,
            config,
            task=task,
            allow_pickle=allow_pickle,
            adapted=adapted,
            below=below,
            pooling=pooling,
            answers=answers,
        )
        return msgspec.structs.replace(source, remarks=[*source.remarks, *unread])
    family = _family(config)
    config.spellings = family.spellings
    config.refuse_unsupported(family.allowed)
    chosen, remarks = _task(task, config, family, pooling)
    with own_code.explained(config):
        plan = family.build(config, pooling.built_as if pooling is not None else scoring.built_as(chosen, family))
        plan = bidirectional.as_stated(plan, config, family, chosen)
    remarks += own_code.check(config)
    if pooling is not None:
        plan = with_pooling(plan, pooling, family.model_type)
    else:
        plan = scoring.with_score(plan, files, config, below, family, chosen, answers=answers)
    weights = open_weights(files, below, allow_pickle=allow_pickle)
    for folder in pooling.folders if pooling is not None else []:
        weights = weights.beside(folder, open_weights(files, folder, allow_pickle=allow_pickle))
    weights = weights if adapted is None else adapted.merged(weights)
    names = assign.names_of(weights, family)
    plan = with_pooler(plan, family, names.stored) if chosen == "features" else plan
    with own_code.explained(config):
        remarks += assign.check(plan, weights, names, family, task=chosen)
    remarks += [*names.remarks(), *assign.fill(plan, weights, names), *unread, *config.remarks]
    remarks += difference_remarks(family, plan.model) + ([] if adapted is None else [adapted.remark])
    return source_of(
        plan.model,
        name=str(directory),
        label=family.model_type,
        kind="huggingface",
        task=chosen,
        longest=plan.longest,
        sha256=sha256(files, weights, [f"{below}config.json", *(pooling.files if pooling else [])]),
        files=copied(files, below) | ({} if adapted is None else copied(own, "")),
        remarks=remarks,
        text_rules=None if pooling is None or pooling.scores else pooling.rules,
        pair_rules=scoring.pair_rules(files, config, below, chosen, answers=answers),
    )


def _is_foreign(config: Config) -> bool:
    """Whether the type is none that posexport defines."""
    return isinstance(kind := config.values.get("model_type"), str) and FAMILIES.get(kind) is None


def _family(config: Config) -> Family:
    known = ", ".join(FAMILIES.names)
    if "model_type" not in config.values:
        raise PosexportError(f"{config.label} has no model_type; it must be one of {known}")
    return FAMILIES[config.text("model_type")]


def _check_embeds(task: str | None, config: Config, pooling: Pooling | None) -> None:
    """PosexportError for a task of vectors of texts that no files say how to make."""
    if task in EMBEDDING_TASKS and (pooling is None or pooling.task != task):
        raise PosexportError(
            f"{config.label}: the task {task} needs a {MODULES} of sentence-transformers that says how, and "
            f"{'there is none' if pooling is None else f'this one is for {pooling.task}'}; use --task features for the "
            "transformer alone"
        )


def _task(task: str | None, config: Config, family: Family, pooling: Pooling | None) -> tuple[str, list[str]]:
    """The task, and remarks on how it was chosen."""
    known = list(dict.fromkeys([*family.architectures.values(), *family.tasks]))
    _check_embeds(task, config, pooling)
    if task not in (None, *EMBEDDING_TASKS, *known):
        raise PosexportError(f"{config.label}: {family.model_type} has no task {task}; it has {', '.join(known)}")
    if task is not None:
        return task, []
    if pooling is not None:
        return pooling.task, []
    return _task_of_class(config, family, known)


def _task_of_class(config: Config, family: Family, known: list[str]) -> tuple[str, list[str]]:
    """The task of the class that config.json names, and remarks."""
    architecture = config.architecture()
    if architecture is None:
        return "features", [f"{config.label} names no architectures; taken for the task features"]
    end = next((end for end in family.architectures if architecture.endswith(end)), None)
    if end is None or (architecture.endswith("LMHeadModel") and end == "Model"):
        raise PosexportError(
            f"{config.label} says architectures = {architecture}, which is no task here; "
            f"{family.advice or 'choose --task out of ' + ', '.join(known)}"
        )
    task = family.architectures[end]
    return task, [f"{architecture} is taken for the task {task}"] if end == "ForPreTraining" else []

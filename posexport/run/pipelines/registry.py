"""The pipelines of bundles, by the records of `base.tasks`. A pipeline's module is imported when it is opened."""

import importlib
from typing import Any

from posexport.base.options.check import did_you_mean
from posexport.base.spec import ModelSpec
from posexport.base.tasks.registry import TASKS, pipelines_of
from posexport.base.tasks.task import Kind, PipelineTask
from posexport.errors import PosexportError
from posexport.run.pipelines.pipeline import Pipeline
from posexport.run.session import Session

#: other names of the same tasks, as transformers has them
ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}


def kind_of(spec: ModelSpec) -> Kind:
    """The kind of a bundle's inputs, recognized by transformers' input names."""
    names = {tensor.name for tensor in spec.inputs}
    if names & {"input_values", "input_features"}:
        return "audio"
    return "images" if "pixel_values" in names else "text"


def tasks_of(spec: ModelSpec) -> list[PipelineTask]:
    """The pipelines that a bundle has, the one that is chosen without a name first."""
    kind, names = kind_of(spec), {"", *(tensor.name for tensor in spec.inputs)}
    return [
        each
        for each in pipelines_of(spec.task)
        if each.takes == kind and each.reads in names and (not each.rules or getattr(spec, each.rules) is not None)
    ]


def open_pipeline(session: Session, task: str | None, **options: Any) -> Pipeline:
    """Opens the pipeline ``task`` of a session; None: the first pipeline of the bundle's task.

    Raises PosexportError for an unknown task, or one that the bundle does not have.
    """
    chosen = _chosen(session, task)
    module, name = chosen.implementation.split(":")
    kind: type[Pipeline] = getattr(importlib.import_module(f"posexport.run.pipelines.{module}"), name)
    return kind(session, task or chosen.name, **options)


def _chosen(session: Session, task: str | None) -> PipelineTask:
    there = tasks_of(session.manifest)
    names = ", ".join(entry.name for entry in there)
    if task is None:
        if not there:
            raise PosexportError(
                f"a bundle for {session.manifest.task} has no pipeline; use session.run, or convert the checkpoint "
                f"for another task (--task)"
            )
        return there[0]
    name = canonical(task)
    for entry in there:
        if entry.name == name:
            return entry
    raise PosexportError(
        f"this bundle is for {session.manifest.task}, and not for the pipeline {task}; "
        + (f"it has {names}" if names else "it has no pipeline: use session.run")
    )


def check_task(task: str) -> None:
    """PosexportError for a task that no pipeline has."""
    if not is_task(task):
        known = _names()
        hint = did_you_mean(task, known, "known: " + ", ".join(sorted(known)))
        raise PosexportError(f"there is no pipeline {task!r}; {hint}")


def is_task(name: object) -> bool:
    """Whether ``name`` is a task's name or alias."""
    return isinstance(name, str) and canonical(name) in _names()


def _names() -> set[str]:
    return {pipeline.name for task in TASKS.values() for pipeline in task.pipelines} | set(ALIASES)


def canonical(task: str) -> str:
    """The registered name of a task: aliases, and ``translation_xx_to_yy``, which is one task."""
    return "translation" if task.startswith("translation_") else ALIASES.get(task, task)

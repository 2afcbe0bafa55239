"""All tasks by name, and where the names of tasks, classes and pipelines lead."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from posexport.base.options.check import closest
from posexport.base.registry import Registry
from posexport.base.tasks.table import TABLE
from posexport.base.tasks.task import PipelineTask, Task

TASKS: Registry[Task] = Registry("tasks", Task)
TASKS.update((task.name, task) for task in TABLE)


def through_transformers() -> Iterator[Task]:
    """The tasks that transformers' classes are converted for."""
    return (task for task in TASKS.values() if task.ends)


def task_of(architecture: str, keys: Collection[str]) -> Task | None:
    """The task of a class of transformers, of a configuration with ``keys``; None for a class without a record."""
    fits = (task for task in through_transformers() if architecture.endswith(task.ends))
    return next((task for task in fits if set(task.needs) <= set(keys)), None)


def all_tensors(architecture: str) -> Task:
    """The task of a class without a record: all tensors that it returns, under their names."""
    return replace(TASKS["tensors"], ends=(architecture,))


#: what other libraries and the Hugging Face Hub call a task
_ALSO_CALLED = {
    "embedding": "sentence-embedding",
    "sentence-similarity": "sentence-embedding",
    "text-embedding": "sentence-embedding",
    "reranking": "text-ranking",
    "ner": "token-classification",
    "sentiment-analysis": "sequence-classification",
    "masked-lm": "fill-mask",
    "causal-lm": "text-generation",
    "seq2seq-lm": "text2text-generation",
    "asr": "automatic-speech-recognition",
}


def did_you_mean_task(name: str, known: Collection[str], otherwise: str) -> str:
    """The one of the tasks ``known`` that ``name`` is elsewhere or is closest to, as a question; else ``otherwise``.

    The name of a pipeline of transformers leads to the first task that has it.
    """
    pipelines = {pipeline.name: task for task in [*TASKS][::-1] for pipeline in TASKS[task].pipelines}
    elsewhere = {other: task for other, task in {**pipelines, **_ALSO_CALLED}.items() if task in known}
    names = {**elsewhere, **{f"{other}s": task for other, task in elsewhere.items()}, **{task: task for task in known}}
    match = closest(name, names)
    return otherwise if match is None else f"did you mean {names[match]}?"


def pipelines_of(task: str) -> tuple[PipelineTask, ...]:
    """The pipelines of a bundle for ``task``, the default first."""
    return TASKS[task].pipelines if task in TASKS else ()

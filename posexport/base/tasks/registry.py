"""All tasks, one line each, and where the names of tasks, classes and pipelines lead."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from posexport.base.options.check import closest
from posexport.base.registry import Registry
from posexport.base.tasks.task import PipelineTask, Task

#: of a class in ``architectures`` the first one with a matching suffix, and the keys that it needs, is chosen
_NAMES = (
    "fill-mask",
    "text-generation",
    # before text2text-generation: classes with the same suffixes
    "image-to-text",
    "image-text-to-text",
    "audio-text-to-text",
    "automatic-speech-recognition",
    "text2text-generation",
    "sequence-classification",
    "text-ranking",
    "token-classification",
    "question-answering",
    "image-classification",
    # before object-detection: classes with the same suffixes
    "zero-shot-object-detection",
    "object-detection",
    "zero-shot-image-segmentation",
    "image-segmentation",
    "depth-estimation",
    "keypoint-detection",
    "ctc",
    "audio-classification",
    # before features: the shortest suffixes
    "mask-generation",
    "zero-shot-image-classification",
    "zero-shot-audio-classification",
    "zero-shot-token-classification",
    "zero-shot-classification",
    "reinforcement-learning",
    "features",
    "sentence-embedding",
    "token-embedding",
    "visual-document-retrieval",
    "time-series-forecasting",
    "tensors",
)
#: by name, each in a module of this package that is called as it is
TASKS: Registry[Task] = Registry(
    "tasks", Task, {name: f"{__package__}.{name.replace('-', '_')}:TASK" for name in _NAMES}
)


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

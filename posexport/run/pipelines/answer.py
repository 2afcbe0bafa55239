"""Runs a bundle's pipeline for ``posexport run`` and formats the results as text or JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from posexport.base.options.run import RunOptions
from posexport.errors import PosexportError
from posexport.run import answer as tensors
from posexport.run.arrays import read_texts
from posexport.run.batches import Progress
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import read
from posexport.run.pipelines.open import pipeline
from posexport.run.pipelines.pipeline import Pipeline
from posexport.run.pipelines.registry import check_task, kind_of, tasks_of

#: tasks that return tensors, which `posexport.run.answer` shows with their shapes
_TENSORS = ("feature-extraction", "image-feature-extraction")


@dataclass(frozen=True)
class Answers:
    """Results of one run, one for each input. ``inputs``: texts, or the paths of pictures and sounds."""

    directory: Path
    providers: list[str]
    task: str
    inputs: list[str]
    answers: list[Any]

    def to_json(self) -> str:
        """Returns one JSON document."""
        document = {
            "bundle": str(self.directory),
            "providers": self.providers,
            "task": self.task,
            "inputs": self.inputs,
            "answers": self.answers,
        }
        return msgspec.json.encode(document, enc_hook=lambda value: np.asarray(value).tolist()).decode()

    def to_text(self) -> str:
        """Returns the results as lines; with several inputs, each result follows its input."""
        if len(self.inputs) == 1:
            return "\n".join(lines(self.answers[0]))
        parts = zip(self.inputs, self.answers, strict=True)
        return "\n\n".join("\n".join((f"--- {' '.join(name.split())}", *lines(item))) for name, item in parts)


def lines(answer: Any) -> list[str]:
    """Formats the result of any task: the score first, then the other values."""
    if isinstance(answer, list):
        return [line for item in answer for line in lines(item)]
    if not isinstance(answer, dict):
        return [str(answer)]
    if "labels" in answer and "scores" in answer:
        return [f"{score:10.4f}  {label}" for label, score in zip(answer["labels"], answer["scores"], strict=True)]
    for key, value in answer.items():
        if (key == "text" or key.endswith("_text")) and "score" not in answer:  # an entity has both
            text = value if isinstance(value, str) else value[-1]["content"]
            return [text, *(f"{_span(item.get('timestamp'))}  {item['text']}" for item in answer.get("chunks", []))]
    start, end = answer.get("start"), answer.get("end")
    place = [] if start is None else [f"[{start}:{end}]"]
    left_out = ("score", "start", "end", "index", "token")
    values = [_shown(key, value) for key, value in answer.items() if key not in left_out]
    score = [f"{answer['score']:10.4f}"] if answer.get("score") is not None else []
    return ["  ".join((*score, *values, *place))]


def _shown(key: str, value: Any) -> str:
    """A value as text; of a picture or an array, its size and its range."""
    if isinstance(value, str | int | float | bool | dict | list) or value is None:
        return str(value)
    array = np.asarray(value)
    return f"{key} {'x'.join(map(str, array.shape))} from {array.min():.4g} to {array.max():.4g}"


def _span(timestamp: Any) -> str:
    """Formats the seconds from and to."""
    start, end = timestamp or (None, None)
    return f"[{'' if start is None else f'{start:.2f}'} - {'' if end is None else f'{end:.2f}'}]"


def answer(directory: Path, options: RunOptions, progress: Progress | None = None) -> "Answers | tensors.Answer":
    """Runs the bundle's pipeline; without a pipeline, or with options for tensors, returns the model's outputs.

    Texts with pictures are labels. Raises PosexportError for inputs that exclude each other, or that the bundle does
    not take.
    """
    if options.task is not None:
        check_task(options.task)
    manifest = read(directory, options.precision)
    _check_kind(manifest, options)
    about_task = options.task is not None or options.context is not None or bool(options.options)
    if about_task and options.about_tensors:
        raise PosexportError(
            "--task, --context and --option are about the answer of a task; leave them out, or leave out the options "
            "for tensors (--tensors, --only, -o, --inputs, --query and those for vectors)"
        )
    there = tasks_of(manifest)
    if options.about_tensors or (not about_task and (not there or there[0].name in _TENSORS)):
        return tensors.answer(directory, options, progress)
    return _answers(directory, options)


def _answers(directory: Path, options: RunOptions) -> Answers:
    texts = [*options.texts, *(read_texts(Path(options.texts_file)) if options.texts_file is not None else ())]
    files = [*map(str, options.images), *map(str, options.audio)]
    pipe = pipeline(directory, options.task, **options.opening)
    given, context = dict(options.options), options.context
    if options.truncate:
        given |= pipe.truncating()
    if options.top_k is not None:
        given["top_k"] = options.top_k
    if context is not None and (files or pipe.task not in _WITH_CONTEXT):
        raise PosexportError(f"--context is for {' and '.join(_WITH_CONTEXT)}, and this is {pipe.task}; leave it out")
    if pipe.task == "image-text-to-text":
        return Answers(directory, pipe.session.providers, pipe.task, texts, _about(pipe, files, texts, given))
    if files and texts:
        given["candidate_labels"] = texts
    shown = files or texts
    if not shown:
        raise PosexportError("give --text, --texts, --image, --audio or --inputs")
    inputs = shown if context is None else [_pair(text, context, pipe.task) for text in shown]
    # for a list of one input, some tasks of transformers return the result without a list
    answers = [pipe(inputs[0], **given)] if len(inputs) == 1 else pipe(inputs, **given)
    return Answers(directory, pipe.session.providers, pipe.task, shown, answers)


def _about(pipe: Pipeline, files: Sequence[str], texts: Sequence[str], options: Mapping[str, Any]) -> list[Any]:
    """The answer to each text about the same pictures."""
    from posexport.run.pipelines.image_text_to_text import ImageTextToText  # other tasks need no prompts with pictures

    assert isinstance(pipe, ImageTextToText)
    if not texts:
        raise PosexportError("give --text, a question about the pictures")
    return [pipe.about(files, text, **options) for text in texts]


#: tasks with a second text (the context of a question, the second of a pair)
_WITH_CONTEXT = ("question-answering", "text-classification", "sentiment-analysis")


def _check_kind(manifest: Manifest, options: RunOptions) -> None:
    """PosexportError for pictures or sounds that the bundle does not take."""
    kind = kind_of(manifest)
    for name, given, option in (("images", options.images, "--image"), ("audio", options.audio, "--audio")):
        if given and kind != name:
            taken = {"text": "texts", "images": "pictures (--image)", "audio": "sound (--audio)"}[kind]
            raise PosexportError(f"this bundle is for {manifest.task} and takes {taken}; leave out {option}")


def _pair(text: str, context: str, task: str) -> dict[str, str]:
    if task == "question-answering":
        return {"question": text, "context": context}
    return {"text": text, "text_pair": context}

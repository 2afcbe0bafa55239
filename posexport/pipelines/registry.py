"""Registry of tasks and their pipelines, one line each. A module is imported when a pipeline of its task is opened."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from posexport.errors import PosexportError
from posexport.options.check import did_you_mean
from posexport.pipelines.pipeline import Pipeline
from posexport.runtime.session import Session
from posexport.spec import ModelSpec

Kind = Literal["text", "images", "audio"]


@dataclass(frozen=True)
class PipelineTask:
    """One task.

    Attributes:
        name: transformers' name.
        implementation: the module in this package and the class in it, ``module:Class``.
        bundles: tasks of bundles (``manifest.task``) that can do it; of several pipelines for the same bundle the
            first one is chosen where no task is named.
        takes: the kind of its inputs.
    """

    name: str
    implementation: str
    bundles: tuple[str, ...]
    takes: Kind = "text"


_SOUND, _SPEECH = "audio-classification", "automatic-speech-recognition"
_LABELS, _SEQ2SEQ = ("sequence-classification",), ("text2text-generation",)
TASKS = (
    PipelineTask("text-classification", "text_classification:TextClassification", _LABELS),
    PipelineTask("token-classification", "token_classification:TokenClassification", ("token-classification",)),
    PipelineTask("question-answering", "question_answering:QuestionAnswering", ("question-answering",)),
    PipelineTask("fill-mask", "fill_mask:FillMask", ("fill-mask",)),
    PipelineTask("feature-extraction", "feature_extraction:FeatureExtraction", ("features", "sentence-embedding")),
    PipelineTask("text-generation", "text_generation:TextGeneration", ("text-generation",)),
    PipelineTask("text2text-generation", "text2text_generation:Text2TextGeneration", _SEQ2SEQ),
    PipelineTask("image-classification", "images:ImageClassification", ("image-classification",), "images"),
    PipelineTask("image-feature-extraction", "images:ImageFeatureExtraction", ("features",), "images"),
    PipelineTask(
        "zero-shot-image-classification",
        "zero_shot_image_classification:ZeroShotImageClassification",
        ("zero-shot-image-classification",),
        "images",
    ),
    PipelineTask("object-detection", "object_detection:ObjectDetection", ("object-detection",), "images"),
    PipelineTask("image-segmentation", "image_segmentation:ImageSegmentation", ("image-segmentation",), "images"),
    PipelineTask("depth-estimation", "depth_estimation:DepthEstimation", ("depth-estimation",), "images"),
    # chosen only by name
    PipelineTask("summarization", "text2text_generation:Summarization", _SEQ2SEQ),
    PipelineTask("translation", "text2text_generation:Translation", _SEQ2SEQ),
    PipelineTask("zero-shot-classification", "zero_shot_classification:ZeroShotClassification", _LABELS),
    PipelineTask(_SOUND, "audio:AudioClassification", (_SOUND,), "audio"),
    PipelineTask(_SPEECH, "audio:AutomaticSpeechRecognition", ("ctc",), "audio"),
    PipelineTask(_SPEECH, "whisper_recognition:WhisperRecognition", (_SPEECH,), "audio"),
)
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
    kind = kind_of(spec)
    return [task for task in TASKS if spec.task in task.bundles and task.takes == kind]


def open_pipeline(session: Session, task: str | None, **options: Any) -> Pipeline:
    """Opens the pipeline ``task`` of a session; None: the first pipeline of the bundle's task.

    Raises PosexportError for an unknown task, or one that the bundle does not have.
    """
    chosen = _chosen(session, task)
    module, name = chosen.implementation.split(":")
    kind: type[Pipeline] = getattr(importlib.import_module(f"posexport.pipelines.{module}"), name)
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
    return {entry.name for entry in TASKS} | set(ALIASES)


def canonical(task: str) -> str:
    """The registered name of a task: aliases, and ``translation_xx_to_yy``, which is one task."""
    return "translation" if task.startswith("translation_") else ALIASES.get(task, task)

"""The tasks of transformers' classes: one record each. Does not import transformers.

A further task is a record in `TASKS`; the inputs are those of the model's ``forward`` (`posexport.through.module`), and
the bundle's pipeline is in `posexport.pipelines.registry` by the task's name.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task, and the classes of transformers for it.

    Attributes:
        name: a name of ``posexport list tasks``.
        ends: suffixes of the class names in ``architectures``.
        auto: transformers' auto class.
        outputs: the model outputs that the graph returns, if the model has them; empty: all tensors.
        needs: keys that config.json must have, of tasks with the same suffixes.
        sizes_vary: images have every size that the model accepts (`posexport.through.pictures`), in the proof as well;
            otherwise the one that it was trained for.
    """

    name: str
    ends: tuple[str, ...]
    auto: str
    outputs: tuple[str, ...] = ("logits",)
    needs: tuple[str, ...] = ()
    sizes_vary: bool = False


FEATURES = Task("features", ("Model", "Encoder"), "AutoModel", ("last_hidden_state", "pooler_output"))
ZERO_SHOT = Task(
    "zero-shot-image-classification",
    ("Model",),
    "AutoModelForZeroShotImageClassification",
    ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
    needs=("text_config", "vision_config"),
)
EMBEDDINGS = Task(
    "features", ("ModelWithProjection",), "AutoModel", ("text_embeds", "image_embeds", "last_hidden_state")
)
GENERATION = Task("text-generation", ("ForCausalLM", "LMHeadModel"), "AutoModelForCausalLM")
#: encoder-decoders, exported as two graphs
SEQ2SEQ = Task("text2text-generation", ("ForConditionalGeneration", "MTModel"), "AutoModelForSeq2SeqLM")
#: vision-language models, exported as three graphs; class names end like those of encoder-decoders
IMAGE_TEXT = Task("image-text-to-text", SEQ2SEQ.ends, "AutoModelForImageTextToText", needs=("vision_config",))
#: audio classifiers; some class names end like those of text classifiers
AUDIO = Task("audio-classification", ("ForAudioClassification",), "AutoModelForAudioClassification")
#: the first task with a matching suffix, and the keys that it needs, is chosen
TASKS = (
    Task("fill-mask", ("ForMaskedLM",), "AutoModelForMaskedLM"),
    GENERATION,
    IMAGE_TEXT,
    SEQ2SEQ,
    Task("sequence-classification", ("ForSequenceClassification",), "AutoModelForSequenceClassification"),
    Task("token-classification", ("ForTokenClassification",), "AutoModelForTokenClassification"),
    Task(
        "question-answering",
        ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        "AutoModelForQuestionAnswering",
        ("start_logits", "end_logits"),
    ),
    Task("image-classification", ("ForImageClassification",), "AutoModelForImageClassification"),
    Task(
        "object-detection",
        ("ForObjectDetection",),
        "AutoModelForObjectDetection",
        ("logits", "pred_boxes"),
        sizes_vary=True,
    ),
    Task(
        "image-segmentation",
        ("ForSemanticSegmentation", "ForInstanceSegmentation", "ForUniversalSegmentation", "ForSegmentation"),
        "AutoModelForSemanticSegmentation",
        ("logits", "pred_boxes", "pred_masks", "class_queries_logits", "masks_queries_logits"),
        sizes_vary=True,
    ),
    Task(
        "depth-estimation",
        ("ForDepthEstimation",),
        "AutoModelForDepthEstimation",
        ("predicted_depth",),
        sizes_vary=True,
    ),
    Task(
        "keypoint-detection",
        ("ForPoseEstimation", "ForKeypointDetection"),
        "AutoModelForKeypointDetection",
        ("heatmaps",),
        sizes_vary=True,
    ),
    Task("ctc", ("ForCTC",), "AutoModelForCTC"),
    AUDIO,
    ZERO_SHOT,
    EMBEDDINGS,
    FEATURES,
)
#: the task of a class without a record
TENSORS = "tensors"


def task_named(name: str) -> Task | None:
    """The task that ``--task`` names; None for a task that is not converted through transformers."""
    return next((task for task in reversed(TASKS) if task.name == name), None)


def task_of(architecture: str, keys: Collection[str]) -> Task | None:
    """The task of a class of transformers, of a configuration with ``keys``; None for a class without a record."""
    return next((task for task in TASKS if architecture.endswith(task.ends) and set(task.needs) <= set(keys)), None)


def all_tensors(architecture: str) -> Task:
    """The task of a class without a record: all tensors that it returns, under their names."""
    return Task(TENSORS, (architecture,), "AutoModel", (), sizes_vary=True)

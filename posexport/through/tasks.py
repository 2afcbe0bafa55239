"""Tasks by the suffix of transformers' class names. Does not import transformers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task, and the classes of transformers for it.

    Attributes:
        name: a name of ``posexport list tasks``.
        ends: suffixes of the class names in ``architectures``.
        auto: transformers' auto class.
        outputs: the model outputs that the graph returns, if the model has them.
    """

    name: str
    ends: tuple[str, ...]
    auto: str
    outputs: tuple[str, ...] = ("logits",)


FEATURES = Task("features", ("Model", "Encoder"), "AutoModel", ("last_hidden_state", "pooler_output"))
ZERO_SHOT = Task(
    "zero-shot-image-classification",
    (),
    "AutoModelForZeroShotImageClassification",
    ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
)
EMBEDDINGS = Task(
    "features", ("ModelWithProjection",), "AutoModel", ("text_embeds", "image_embeds", "last_hidden_state")
)
GENERATION = Task("text-generation", ("ForCausalLM", "LMHeadModel"), "AutoModelForCausalLM")
#: encoder-decoders, exported as two graphs
SEQ2SEQ = Task("text2text-generation", ("ForConditionalGeneration", "MTModel"), "AutoModelForSeq2SeqLM")
#: vision-language models, exported as three graphs; class names end like those of encoder-decoders
IMAGE_TEXT = Task("image-text-to-text", SEQ2SEQ.ends, "AutoModelForImageTextToText")
#: audio classifiers; some class names end like those of text classifiers
AUDIO = Task("audio-classification", ("ForAudioClassification",), "AutoModelForAudioClassification")
#: the first task with a matching suffix is chosen
TASKS = (
    Task("fill-mask", ("ForMaskedLM",), "AutoModelForMaskedLM"),
    GENERATION,
    SEQ2SEQ,
    IMAGE_TEXT,
    Task("sequence-classification", ("ForSequenceClassification",), "AutoModelForSequenceClassification"),
    Task("token-classification", ("ForTokenClassification",), "AutoModelForTokenClassification"),
    Task(
        "question-answering",
        ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        "AutoModelForQuestionAnswering",
        ("start_logits", "end_logits"),
    ),
    Task("image-classification", ("ForImageClassification",), "AutoModelForImageClassification"),
    Task("ctc", ("ForCTC",), "AutoModelForCTC"),
    AUDIO,
    ZERO_SHOT,
    EMBEDDINGS,
    FEATURES,
)


def task_named(name: str) -> Task | None:
    """The task that ``--task`` names; None for a task that is not converted through transformers."""
    return next((task for task in reversed(TASKS) if task.name == name), None)


def task_of(architecture: str) -> Task | None:
    """The task of a class of transformers; None for a task that is not converted."""
    return next((task for task in TASKS if architecture.endswith(task.ends)), None)

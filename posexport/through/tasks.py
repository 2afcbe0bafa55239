"""What an architecture of transformers is for, by the end of its class's name. Needs no transformers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: a name of ``posexport list tasks``.
        ends: of class names in ``architectures``.
        auto: transformers' class that finds the model of a type for it.
        outputs: of the model's answer, those that the graph returns, where they are there.
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
#: of an encoder-decoder, in two graphs
SEQ2SEQ = Task("text2text-generation", ("ForConditionalGeneration", "MTModel"), "AutoModelForSeq2SeqLM")
#: of images and text, in three graphs; its classes are called as those of encoder-decoders
IMAGE_TEXT = Task("image-text-to-text", SEQ2SEQ.ends, "AutoModelForImageTextToText")
#: its classes are called as those of texts are
AUDIO = Task("audio-classification", ("ForAudioClassification",), "AutoModelForAudioClassification")
#: the first whose end fits is taken
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
    """The task that ``--task`` names; None where no model of transformers is converted for it."""
    return next((task for task in reversed(TASKS) if task.name == name), None)


def task_of(architecture: str) -> Task | None:
    """The task of a class of transformers; None where it is none that is converted."""
    return next((task for task in TASKS if architecture.endswith(task.ends)), None)

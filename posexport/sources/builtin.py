"""Built-in models, ``<definition>-<encoding>``, with seeded random weights."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, cast

from posexport.encodings.base import ENCODINGS
from posexport.encodings.build import build
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig
from posexport.models.heads import (
    Features,
    FillMask,
    Head,
    QuestionAnswering,
    SentenceEmbedding,
    SequenceClassification,
    TokenClassification,
)
from posexport.models.task import EncoderModel
from posexport.settings import convert
from posexport.sources import settings, weights
from posexport.sources.base import Source
from posexport.sources.of_encoder import encoder_source

#: Sizes where the user gives none: small, and such that no two can be taken for one another.
DEFAULTS: dict[str, Any] = {"vocab": 1000, "hidden": 60, "heads": 5, "feedforward": 224, "layers": 2, "types": 2}
MAX_POSITIONS = 128
LABELS = 3
#: Of any setting: above every real size, and low enough that sizes multiply without overflow.
LARGEST = 1 << 24
TASKS = {
    "features": "the hidden states",
    "sentence-embedding": "one vector a text",
    "fill-mask": "logits over the vocabulary at every token",
    "sequence-classification": "logits over labels for a text",
    "token-classification": "logits over labels at every token",
    "question-answering": "start and end scores at every token",
}


def names() -> list[str]:
    """All built-in models."""
    return [f"encoder-{encoding}" for encoding in ENCODINGS]


def head(task: str, config: EncoderConfig, labels: int) -> Head:
    """The head for a task; PosexportError names the tasks."""
    makers: dict[str, Callable[[], Head]] = {
        "features": lambda: Features(config.hidden),
        "sentence-embedding": lambda: SentenceEmbedding(config.hidden, "mean", normalise=True),
        "fill-mask": lambda: FillMask(
            config.hidden, config.embedding or config.hidden, config.vocab, config.activation, config.eps
        ),
        "sequence-classification": lambda: SequenceClassification(config.hidden, labels, "tanh"),
        "token-classification": lambda: TokenClassification(config.hidden, labels),
        "question-answering": lambda: QuestionAnswering(config.hidden),
    }
    if task not in makers:
        raise PosexportError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
    return makers[task]()


def load(name: str, *, task: str | None, settings_given: tuple[str, ...]) -> Source:
    """The model called ``name``, sized by ``--set`` pairs.

    Raises:
        PosexportError: an unknown name or setting, or a value that does not fit.
    """
    if name not in names():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {close[0]}?" if close else "see posexport list models"
        raise PosexportError(f"{name} is neither a directory, a file.py:factory nor a built-in model; {hint}")
    given = settings.parse(settings_given)
    config = EncoderConfig(**{**DEFAULTS, **settings.into(EncoderConfig, given)})
    extra = {
        key: cast(int, convert(f"--set {key}", given.get(key, str(default)), int))
        for key, default in (("seed", 0), ("labels", LABELS), ("max_positions", MAX_POSITIONS))
    }
    _check_sizes({**vars(config), **extra})
    if given.get("head_size", str(config.head_size)) != str(config.head_size):
        raise PosexportError(
            f"--set head_size={given['head_size']}: a head has hidden / heads = {config.head_size}; set those instead"
        )
    sizes = {"hidden": config.embedding or config.hidden, "heads": config.heads, "head_size": config.head_size}
    if "hidden" in given and config.embedding:
        given = {**given, "hidden": str(config.embedding)}
    encoding, used_by_encoding = build(
        name.removeprefix("encoder-"), {**sizes, "max_positions": extra["max_positions"]}, given
    )
    known = set(EncoderConfig.__dataclass_fields__) | set(extra) | used_by_encoding
    settings.refuse_unknown(given, known, name)
    module = EncoderModel(Encoder(config, encoding), head(task or "features", config, extra["labels"])).eval()
    weights.draw(module, extra["seed"])
    return encoder_source(module, name=name, kind="builtin", task=task or "features", sha256=weights.digest(module))


def _check_sizes(sizes: Mapping[str, Any]) -> None:
    if sizes["labels"] < 1:
        raise PosexportError(f"labels must be at least 1, got {sizes['labels']}")
    for key, value in sizes.items():
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise PosexportError(f"{key} must be at most {LARGEST}, got {value}")

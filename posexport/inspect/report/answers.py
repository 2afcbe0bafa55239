"""The pipeline of the bundle's task on a few sentences. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posexport.base.options.run import RunOptions
from posexport.errors import PosexportError
from posexport.run.answer import SHOWN, Answer
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import json_object
from posexport.run.pipelines.answer import Answers, answer, lines
from posexport.run.pipelines.registry import kind_of, tasks_of

_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_SENTENCES = ("The cat sleeps on the warm stove.", "A kitten is napping by the oven.", "Stocks fell again on Monday.")
#: inputs of pipelines for which `_SENTENCES` do not fit
_OF_TASK: dict[str, tuple[str, ...]] = {
    "text-classification": ("The food was wonderful.", "I waited an hour for a cold soup."),
    "token-classification": ("Marie Curie worked in Paris.",),
    "fill-mask": ("The cat sleeps on the warm {mask}.",),
    "question-answering": ("Where does the cat sleep?",),
    "text-generation": ("Once upon a time",),
    "text2text-generation": ("translate English to German: The house is old.",),
}
_CONTEXT = "The cat sleeps on the warm stove, and the dog lies under the table."
#: tokens that a decoder writes, and lines of an answer that are shown
_TOKENS, _LINES = 20, 8


@dataclass(frozen=True)
class Shown:
    """An input and the lines of its answer."""

    text: str
    answer: list[str]


@dataclass(frozen=True)
class TextAnswers:
    """The results of a pipeline. ``similarity``: of all pairs of sentence embeddings; ``context``: of questions."""

    task: str
    answers: list[Shown]
    context: str = ""
    similarity: list[list[str]] | None = None
    similarity_name: str = ""


def takes_texts(manifest: Manifest) -> bool:
    """Whether the bundle has a tokenizer and reads texts."""
    return _TOKENIZER in manifest.files and kind_of(manifest) == "text"


def answers(directory: Path, manifest: Manifest, texts: Sequence[str] = ()) -> TextAnswers:
    """The results of the bundle's pipeline for ``texts``, or for sentences that fit the task.

    Raises:
        PosexportError: the bundle cannot be run here, or does not take the texts.
    """
    task = tasks_of(manifest)[0].name if tasks_of(manifest) else ""
    inputs = list(texts) or list(_OF_TASK.get(task, _SENTENCES))
    if not texts and task == "fill-mask":
        inputs = [text.format(mask=_mask(directory, manifest)) for text in inputs]
    options: dict[str, Any] = {"max_new_tokens": _TOKENS} if "generation" in task else {}
    context = _CONTEXT if task == "question-answering" else None
    done = answer(directory, RunOptions(texts=inputs, context=context, options=options))
    if isinstance(done, Answers):
        shown = [
            Shown(text, [_printable(line) for line in lines(one)[:_LINES]])
            for text, one in zip(done.inputs, done.answers, strict=True)
        ]
        return TextAnswers(done.task, shown, context or "")
    return _tensors(done)


def _tensors(done: Answer) -> TextAnswers:
    """The first numbers of every output, and similarities."""
    shown = [
        Shown(
            text,
            [
                f"{name}: {', '.join(f'{v:.4f}' for v in array[number].flat[:SHOWN])}"
                for name, array in done.outputs.items()
            ],
        )
        for number, text in enumerate(done.texts)
    ]
    if done.similarity is None:
        return TextAnswers("feature-extraction", shown)
    table = [[f"{value:.3f}" for value in values] for values in done.similarity]
    return TextAnswers("sentence-similarity", shown, similarity=table, similarity_name=done.similarity_name)


def _printable(line: str) -> str:
    """A line of an answer; a page has no control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in line)


def _mask(directory: Path, manifest: Manifest) -> str:
    """The mask token of the tokenizer."""
    token = json_object(directory, manifest, _SETTINGS).get("mask_token", "[MASK]")
    words = token.get("content") if isinstance(token, dict) else token
    if not isinstance(words, str):
        raise PosexportError(f"{_SETTINGS} names no mask token, so no word is left out; give a text")
    return words

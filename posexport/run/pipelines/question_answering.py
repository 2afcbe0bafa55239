"""``question-answering``: extracts the answer to a question from a context; long contexts are split into chunks.

As in transformers 4.57.6; version 5 has no pipeline for this task. Shape letters: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats, as_inputs
from posexport.run.pipelines.text_pipeline import TextPipeline

if TYPE_CHECKING:
    from tokenizers import Encoding

START, END = "start_logits", "end_logits"
#: the logit of a token that cannot be in an answer
_NEVER = -10000.0
Answer = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """Holds a question and its context."""

    question: str
    context: str


@dataclass(frozen=True)
class Chunk:
    """The question and a part of the context, as one row of tokens."""

    item: int
    encoding: "Encoding"


@dataclass(frozen=True)
class Choice:
    """Options of `QuestionAnswering.answers`."""

    top_k: int
    max_answer_len: int
    handle_impossible_answer: bool
    align_to_words: bool


class QuestionAnswering(TextPipeline):
    """Inputs are ``{"question": ..., "context": ...}``."""

    def __call__(
        self,
        inputs: Any = None,
        context: str | None = None,
        *,
        question: str | Sequence[str] | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """The answer of each example: ``inputs``, or ``question`` and ``context``, each a text or a list of texts.

        A list of one example gives the answer of that example, as in transformers.
        """
        if question is not None:
            if inputs is not None or context is None:
                raise PosexportError("give question and context, or examples that have both")
            inputs = _examples(question, context)
        elif context is not None:
            inputs = {"question": inputs, "context": context}
        inputs = as_inputs(inputs)
        if isinstance(inputs, list) and len(inputs) == 1:
            (inputs,) = inputs
        return super().__call__(inputs, batch_size=batch_size, **options)

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int = 15,
        max_seq_len: int | None = None,
        max_question_len: int | None = None,
        handle_impossible_answer: bool = False,
        align_to_words: bool = True,
        padding: bool | str | None = None,
    ) -> list[Any]:
        """``{"score", "start", "end", "answer"}`` of each example, or a list of up to ``top_k`` of them.

        Args:
            items: examples.
            batches: of calls.
            top_k: answers of each example.
            doc_stride: tokens that parts of a long context share; None: 128, or half of a part.
            max_answer_len: tokens of an answer at most.
            max_seq_len: tokens of the question and a part of the context; None: 384, or the tokenizer's
                ``model_max_length``.
            max_question_len: without effect, as of transformers' fast tokenizers.
            handle_impossible_answer: the empty text is a candidate too.
            align_to_words: answers begin and end where words do.
            padding: without effect: rows that share a call are padded.
        """
        for name, value in (("top_k", top_k), ("max_answer_len", max_answer_len)):
            if value < 1:
                raise PosexportError(f"{name} must be at least 1, got {value}")
        examples = [_example(item, number) for number, item in enumerate(items)]
        length = min(self.known_length or 384, 384) if max_seq_len is None else max_seq_len
        stride = min(length // 2, 128) if doc_stride is None else doc_stride
        if stride > length:
            raise PosexportError(f"doc_stride ({stride}) is larger than max_seq_len ({length}); give a smaller one")
        # question and context as a pair, of which only the context is cut into parts
        first = self.texts.padding_side == "right"
        rows = self.encoded(
            [
                (example.question, example.context) if first else (example.context, example.question)
                for example in examples
            ],
            truncation="only_second" if first else "only_first",
            max_length=length,
            stride=stride,
        )
        chunks = [Chunk(number, encoding) for number, row in enumerate(rows) for encoding in (row, *row.overflowing)]
        logits = self.run_rows(
            [chunk.encoding for chunk in chunks], batches, [START, END], lambda _, outputs: dict(outputs)
        )
        # the best spans of all parts of an example
        choice = Choice(top_k, max_answer_len, handle_impossible_answer, align_to_words)
        return [
            self._answer(
                example,
                [
                    (chunk.encoding, outputs)
                    for chunk, outputs in zip(chunks, logits, strict=True)
                    if chunk.item == number
                ],
                choice,
                1 if first else 0,
            )
            for number, example in enumerate(examples)
        ]

    def _answer(
        self, example: Example, chunks: Sequence[tuple["Encoding", dict[str, Floats]]], choice: Choice, of_context: int
    ) -> Any:
        answers: dict[str, Answer] = {}
        impossible = 1_000_000.0
        for encoding, logits in chunks:
            allowed = self._allowed(encoding, of_context)
            start_T, end_T = (_probabilities(logits[name], allowed) for name in (START, END))
            if choice.handle_impossible_answer:
                impossible = min(impossible, float(start_T[0] * end_T[0]))
            start_T[0] = end_T[0] = 0.0
            # some candidates become one when their ends are moved to words
            count = choice.top_k * 2 + 10 if choice.align_to_words else choice.top_k
            for start, end, score in spans(start_T, end_T, count, choice.max_answer_len, allowed):
                begin, stop = characters(encoding, start, end, of_context, align_to_words=choice.align_to_words)
                text = example.context[begin:stop]
                answer = answers.setdefault(text.lower(), {"score": 0.0, "start": begin, "end": stop, "answer": text})
                answer["score"] += score
        ranked = list(answers.values())
        if choice.handle_impossible_answer:
            ranked.append({"score": impossible, "start": 0, "end": 0, "answer": ""})
        ranked = sorted(ranked, key=lambda answer: answer["score"], reverse=True)[: choice.top_k]
        return ranked[0] if len(ranked) == 1 else ranked

    def _allowed(self, encoding: "Encoding", of_context: int) -> NDArray[np.bool_]:
        """Tokens that can be in an answer: the context's, and the first one, which means no answer."""
        if of_context == 1:
            allowed = [sequence == 1 for sequence in encoding.sequence_ids]
        else:  # every token, as in transformers
            allowed = [True for _ in encoding.sequence_ids]
        cls_token = self.special_id("cls_token")
        first = [number == cls_token for number in encoding.ids]
        return np.array([any(pair) for pair in zip(allowed, first, strict=True)])


def spans(
    start_T: Floats, end_T: Floats, count: int, longest: int, allowed_T: NDArray[np.bool_]
) -> list[tuple[int, int, float]]:
    """The likeliest pairs of first and last token, with ``start * end``, of at most ``longest`` tokens."""
    scores = np.tril(np.triu(start_T[:, None] * end_T[None]), longest - 1).ravel()
    if count == 1:
        order = np.array([scores.argmax()])
    elif len(scores) < count:
        order = np.argsort(-scores)
    else:
        best = np.argpartition(-scores, count)[:count] if count < len(scores) else np.arange(len(scores))
        order = best[np.argsort(-scores[best])]
    starts, ends = np.divmod(order, len(end_T))
    inside = allowed_T[starts] & allowed_T[ends]
    return [
        (int(start), int(end), float(scores[place]))
        for start, end, place, keep in zip(starts, ends, order, inside, strict=True)
        if keep
    ]


def characters(encoding: "Encoding", start: int, end: int, of_context: int, *, align_to_words: bool) -> tuple[int, int]:
    """The characters of the context from one token to another, or from the one's word to the other's."""
    if align_to_words:
        first, last = encoding.token_to_word(start), encoding.token_to_word(end)
        if first is not None and last is not None:
            words = encoding.word_to_chars(first, of_context), encoding.word_to_chars(last, of_context)
            if words[0] is not None and words[1] is not None:
                return words[0][0], words[1][1]
    return encoding.offsets[start][0], encoding.offsets[end][1]


def _probabilities(logits_T: Floats, allowed_T: NDArray[np.bool_]) -> Floats:
    masked = np.where(allowed_T, logits_T, np.float32(_NEVER))
    shifted = np.exp(masked - masked.max())
    out: Floats = shifted / shifted.sum()
    return out


def _example(item: Any, number: int) -> Example:
    if not isinstance(item, dict):
        raise PosexportError(f'example {number} must be {{"question": ..., "context": ...}}, got {item!r:.60}')
    for name in ("question", "context"):
        if not isinstance(item.get(name), str) or not item[name]:
            raise PosexportError(f"example {number} has no {name}; give it a text that is not empty")
    return Example(item["question"], item["context"])


def _examples(question: str | Sequence[str], context: str | Sequence[str]) -> Any:
    if isinstance(question, str):
        return {"question": question, "context": context}
    question = list(question)
    contexts = [context] * len(question) if isinstance(context, str) else list(context)
    if len(contexts) != len(question):
        raise PosexportError(f"there are {len(question)} questions and {len(contexts)} contexts; give as many of both")
    return [{"question": text, "context": of} for text, of in zip(question, contexts, strict=True)]

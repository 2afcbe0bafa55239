"""``token-classification`` (``ner``): labels of tokens, or of the words and entities that they make up.

Strategies and their results equal transformers' ``TokenClassificationPipeline``. Shape letters: T tokens,
L labels.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.activations import softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.scores import LOGITS

if TYPE_CHECKING:
    from tokenizers import Encoding

STRATEGIES = ("none", "simple", "first", "average", "max")
Entity = dict[str, Any]


@dataclass(frozen=True)
class Token:
    """A token that is not special: its spelling in the vocabulary, scores [L], characters, and place in the row."""

    word: str
    scores_L: Floats
    start: int
    end: int
    index: int
    continues_word: bool


@dataclass(frozen=True)
class Chunk:
    """A row of a text: the whole text, or one of the parts that ``stride`` makes of a long one."""

    item: int
    encoding: "Encoding"


class TokenClassification(TextPipeline):
    """Inputs are texts, or lists of words (``is_split_into_words``)."""

    shortening = "stride=0 to answer it in parts"

    def setup(self) -> None:
        super().setup()
        model = self.tokenizer.model
        self._knows_words = bool(getattr(model, "continuing_subword_prefix", None))
        unknown = self.special_id("unk_token")
        self._unknown = unknown if unknown is not None else self._unknown_of_model()

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        aggregation_strategy: str = "none",
        ignore_labels: Sequence[str] | None = None,
        stride: int | None = None,
        is_split_into_words: bool = False,
        delimiter: str | None = None,
    ) -> list[list[Entity]]:
        """The entities of each text.

        Args:
            items: texts, or lists of words.
            batches: of calls.
            aggregation_strategy: ``none``: tokens; ``simple``: neighbours of the same label are one entity; ``first``,
                ``average``, ``max``: a word has one label, by its first token, by mean scores, by the highest score.
            ignore_labels: labels that are left out; None: ``O``.
            stride: tokens that parts of a long text share; None: a text is cut at the tokenizer's
                ``model_max_length``.
            is_split_into_words: inputs are lists of words.
            delimiter: what joins these words to the text that offsets are of; None: a blank.
        """
        strategy = str(getattr(aggregation_strategy, "value", aggregation_strategy)).lower()
        check_choice("aggregation_strategy", strategy, STRATEGIES)
        if stride is not None and strategy == "none":
            raise PosexportError(
                "stride joins the entities of parts of a text, and aggregation_strategy 'none' makes none; give "
                "another strategy"
            )
        joint = " " if delimiter is None else delimiter
        for number, item in enumerate(items):
            if isinstance(item, list) != is_split_into_words:
                needed = "a list of words" if is_split_into_words else "a text (lists of words: is_split_into_words)"
                raise PosexportError(f"input {number} must be {needed}, got {type(item).__name__}")
        # parts of long texts, the entities of each part, and one list for each text
        chunks = self._parts(items, stride, split=is_split_into_words)
        texts = [joint.join(item) if is_split_into_words else item for item in items]
        starts = [_starts_of_words(item, len(joint)) if is_split_into_words else None for item in items]
        ignored = ["O"] if ignore_labels is None else ignore_labels

        def entities_of(number: int, outputs: dict[str, Floats]) -> list[Entity]:
            chunk = chunks[number]
            tokens = self._tokens(chunk.encoding, softmax(outputs[LOGITS]), texts[chunk.item], starts[chunk.item])
            entities = aggregate(tokens, strategy, self.files.labels(outputs[LOGITS].shape[-1]), self.joined)
            return [entity for entity in entities if entity.get("entity", entity.get("entity_group")) not in ignored]

        per_part = self.run_rows([chunk.encoding for chunk in chunks], batches, [LOGITS], entities_of)
        answers: list[list[list[Entity]]] = [[] for _ in items]
        for chunk, entities in zip(chunks, per_part, strict=True):
            answers[chunk.item].append(entities)
        return [
            per_chunk[0] if len(per_chunk) == 1 else without_overlaps([*itertools.chain(*per_chunk)])
            for per_chunk in answers
        ]

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """Of words one input, unless it is a list of lists."""
        split = options.get("is_split_into_words") and isinstance(inputs, list)
        return [inputs] if split and not all(isinstance(words, list) for words in inputs) else inputs

    def _parts(self, items: list[Any], stride: int | None, *, split: bool) -> list[Chunk]:
        cut = stride is not None or self.known_length is not None
        rows = self.encoded(items, truncation=cut, stride=stride or 0, split=split)
        chunks = []
        for number, encoding in enumerate(rows):
            chunks.append(Chunk(number, encoding))
            if stride is not None:
                chunks += [Chunk(number, overflowing) for overflowing in encoding.overflowing]
        return chunks

    def _tokens(self, encoding: "Encoding", scores_TL: Floats, text: str, starts: list[int] | None) -> list[Token]:
        tokens = []
        for place, (number, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
            if encoding.special_tokens_mask[place]:
                continue
            if starts is not None and (word := encoding.word_ids[place]) is not None:
                start, end = start + starts[word], end + starts[word]
            spelling, shown = self.tokenizer.id_to_token(number) or "", text[start:end]
            if self._knows_words:
                continues = len(spelling) != len(shown)
            else:
                continues = start > 0 and " " not in text[start - 1 : start + 1]
            if number == self._unknown:
                spelling, continues = shown, False
            tokens.append(Token(spelling, scores_TL[place], start, end, place, continues))
        return tokens

    def _unknown_of_model(self) -> int | None:
        token = getattr(self.tokenizer.model, "unk_token", None)
        return self.texts.token_id(token) if isinstance(token, str) else None


def aggregate(
    tokens: Sequence[Token], strategy: str, labels: Sequence[str], joined: Callable[[Sequence[str]], str]
) -> list[Entity]:
    """The entities of a row. ``joined``: tokens to text."""
    if strategy in ("none", "simple"):
        entities = [_of_token(token, labels) for token in tokens]
    else:
        entities = [_of_word(word, strategy, labels, joined) for word in _words(tokens)]
    return entities if strategy == "none" else [_of_group(group, joined) for group in _groups(entities)]


def without_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    """Of entities that begin within another the longest, of those the likeliest."""
    separate: list[Entity] = []
    for entity in sorted(entities, key=lambda each: each["start"]):
        if separate and separate[-1]["start"] <= entity["start"] < separate[-1]["end"]:
            if _rank(entity) > _rank(separate[-1]):
                separate[-1] = entity
        else:
            separate.append(entity)
    return separate


def _rank(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _of_token(token: Token, labels: Sequence[str]) -> Entity:
    best = int(token.scores_L.argmax())
    return {
        "entity": labels[best],
        "score": float(token.scores_L[best]),
        "index": token.index,
        "word": token.word,
        "start": token.start,
        "end": token.end,
    }


def _words(tokens: Sequence[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.continues_word:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _of_word(
    tokens: Sequence[Token], strategy: str, labels: Sequence[str], joined: Callable[[Sequence[str]], str]
) -> Entity:
    if strategy == "average":
        scores_L = np.nanmean(np.stack([token.scores_L for token in tokens]), axis=0)
    elif strategy == "max":
        scores_L = max(tokens, key=lambda token: float(token.scores_L.max())).scores_L
    else:
        scores_L = tokens[0].scores_L
    best = int(scores_L.argmax())
    return {
        "entity": labels[best],
        "score": float(scores_L[best]),
        "word": joined([token.word for token in tokens]),
        "start": tokens[0].start,
        "end": tokens[-1].end,
    }


def _groups(entities: Sequence[Entity]) -> list[list[Entity]]:
    """Neighbours of the same tag together, unless a later one begins an entity (``B-``)."""
    groups: list[list[Entity]] = []
    for entity in entities:
        if groups and _tag(entity) == _tag(groups[-1][-1]) and not entity["entity"].startswith("B-"):
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return groups


def _tag(entity: Entity) -> str:
    name: str = entity["entity"]
    return name[2:] if name.startswith(("B-", "I-")) else name


def _of_group(entities: Sequence[Entity], joined: Callable[[Sequence[str]], str]) -> Entity:
    return {
        "entity_group": entities[0]["entity"].split("-", 1)[-1],
        # float32, in which the library takes this mean
        "score": float(np.mean(np.array([entity["score"] for entity in entities], np.float32))),
        "word": joined([entity["word"] for entity in entities]),
        "start": entities[0]["start"],
        "end": entities[-1]["end"],
    }


def _starts_of_words(words: Sequence[str], joint: int) -> list[int]:
    """Where each word begins in the text that they are joined to."""
    ends = np.cumsum([len(word) + joint for word in words])
    return [0, *ends[:-1].tolist()] if len(words) else []

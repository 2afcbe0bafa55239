"""``zero-shot-token-classification``: entities for labels that the caller names, as gliner's ``predict_entities``.

Zaratiana et al., "GLiNER" (arXiv:2311.08526), section 2.3: of overlapping spans, the one with the highest score is
returned. Word splitting, prompt, threshold and the choice among spans follow gliner 0.2.29 and gliner_config.json.

Shape letters: W words, K widths of a span, N labels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.activations import sigmoid
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats, check_threshold
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.pipelines.zero_shot import NamedLabels, listed_labels
from posexport.run.scores import LOGITS

if TYPE_CHECKING:
    from tokenizers import Encoding

_WORDS = re.compile(r"\w+(?:[-_]\w+)*|\S")
#: the ``span_mode`` with which the logits of a text are [W, N, 3] (begin, end, inside of a word); else [W, K, N]
_BY_TOKEN = "token_level"
Entity = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """An entity: the words from ``first`` to ``last``, inclusive."""

    first: int
    last: int
    label: int
    score: float

    def overlaps(self, other: "Span", *, nested: bool, several: bool) -> bool:
        """Whether only one of two entities can be returned.

        ``nested``: one entity may contain the other; ``several``: a span may have several labels.
        """
        if (self.first, self.last) == (other.first, other.last):
            return not several
        if self.first > other.last or other.first > self.last:
            return False
        return not (nested and (self.first - other.first) * (other.last - self.last) >= 0)


@dataclass(frozen=True)
class Prepared:
    """A tokenized text.

    Attributes:
        item: index of the text among the inputs.
        encoding: token ids of the prompt and the text.
        places: first and last character of every word of the text.
        words: index of the token that represents every word.
        labels: index of the token that represents every label.
    """

    item: int
    encoding: "Encoding"
    places: list[tuple[int, int]]
    words: list[int]
    labels: list[int]


class ZeroShotTokenClassification(NamedLabels, TextPipeline):
    """Finds entities in texts, by a bundle of a gliner model; inputs are texts."""

    def setup(self) -> None:
        super().setup()
        rules = self.files.json("gliner_config.json")
        if (splitter := rules.get("words_splitter_type", "whitespace")) != "whitespace":
            raise PosexportError(
                f"gliner_config.json says words_splitter_type = {splitter!r:.40}, and posexport splits texts by "
                "whitespace alone; prepare the inputs with gliner, and give them to session.run"
            )
        self._marker, self._end = rules.get("ent_token", "<<ENT>>"), rules.get("sep_token", "<<SEP>>")
        stated = rules.get("class_token_index", -1)
        self._marker_id = self.texts.token_id(self._marker) if stated == -1 else stated
        if self._marker_id is None:
            raise PosexportError(f"the tokenizer of the bundle has no token {self._marker}; convert with the right one")
        # the token that represents a label is its marker, or the one after the marker
        self._after_marker = int(not rules.get("embed_ent_token", True))
        self._by_first = rules.get("subtoken_pooling", "first") == "first"
        self._most, self._by_token = rules.get("max_len", 384), rules.get("span_mode") == _BY_TOKEN
        # indices count tokens from the start of a row
        self.texts.padding_side = "right"

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        candidate_labels: str | Sequence[str] | Mapping[str, str] | None = None,
        threshold: float = 0.5,
        flat_ner: bool = True,
        multi_label: bool = False,
    ) -> list[list[Entity]]:
        """The entities of each text, as ``{"start", "end", "text", "label", "score"}``, in the order of the text.

        Args:
            items: texts; words beyond ``max_len`` of gliner_config.json are ignored.
            batches: batch sizes of the calls.
            candidate_labels: a list, a comma-separated string, or a dictionary from labels to descriptions. The model
                reads a description instead of its label.
            threshold: only entities with a higher score are returned.
            flat_ner: return no entity that overlaps another; if false, an entity may contain others.
            multi_label: a span may have several labels.
        """
        described = candidate_labels if isinstance(candidate_labels, Mapping) else {}
        names = list(dict.fromkeys(listed_labels(candidate_labels)))
        prompts = listed_labels([described.get(name, name) for name in names])
        check_threshold(threshold)
        for number, item in enumerate(items):
            if not isinstance(item, str):
                raise PosexportError(f"input {number} must be a text, got {type(item).__name__}; give a string")
        answers: list[list[Entity]] = [[] for _ in items]
        prepared = self._prepared(items, prompts)
        for text, logits in self._logits(prepared, batches):
            spans = (self._of_words if self._by_token else _of_spans)(logits, threshold)
            chosen = _without_overlaps(spans, nested=not flat_ner, several=multi_label)
            answers[text.item] = [_entity(items[text.item], text.places, span, names) for span in chosen]
        return answers

    def _prepared(self, items: list[str], prompts: Sequence[str]) -> list[Prepared]:
        """Tokenize the prompt followed by the text, for every text that has words."""
        prompt = [word for label in prompts for word in (self._marker, label) if word] + [self._end]
        places = [[match.span() for match in _WORDS.finditer(item)][: self._most] for item in items]
        with_words = [number for number, spans in enumerate(places) if spans]
        encodings = self.encoded(
            [prompt + [items[number][start:end] for start, end in places[number]] for number in with_words],
            truncation=self.known_length is not None or self.session.manifest.limits.max_length is not None,
            split=True,
        )
        texts = []
        for number, encoding in zip(with_words, encodings, strict=True):
            labels = [i + self._after_marker for i, token in enumerate(encoding.ids) if token == self._marker_id]
            words = dict(self._words_of(encoding, len(prompt)))
            if len(labels) < len(prompts) or not words:
                raise PosexportError(
                    f"{len(prompts)} labels leave no room for a text in {len(encoding.ids)} tokens, the most that the "
                    "model takes; name fewer"
                )
            with_tokens = [places[number][word] for word in words]
            texts.append(Prepared(number, encoding, with_tokens, list(words.values()), labels[: len(prompts)]))
        return texts

    def _words_of(self, encoding: "Encoding", before: int) -> Iterator[tuple[int, int]]:
        """Yield each word of the text and the index of the token that represents it.

        Words without a token are skipped. The first ``before`` words of ``encoding`` are the prompt.
        """
        words = encoding.word_ids
        for place, word in enumerate(words):
            if word is None or word < before:
                continue
            first = place == 0 or words[place - 1] != word
            last = place + 1 == len(words) or words[place + 1] != word
            if first if self._by_first else last:
                yield word - before, place

    def _logits(self, texts: list[Prepared], batches: Batches) -> Iterator[tuple[Prepared, Floats]]:
        """Yield each text with the logits of its words; texts of similar length are run in one call."""
        for chosen in self._calls([len(text.encoding.ids) for text in texts], batches):
            called = [texts[number] for number in chosen]
            feeds = self.texts.padded([text.encoding for text in called])
            feeds["word_indices"] = _padded([text.words for text in called])
            feeds["label_indices"] = _padded([text.labels for text in called])
            values = self.session.run(feeds, outputs=[LOGITS])[LOGITS].astype(np.float32, copy=False)
            for text, logits in zip(called, values, strict=True):
                yield text, logits[: len(text.words)]

    def _of_words(self, logits_WN3: Floats, threshold: float) -> list[Span]:
        """Spans with begin, inside and end scores above ``threshold``; the lowest of these is the span's score."""
        scores_WN3 = sigmoid(logits_WN3)
        begin_WN, end_WN, inside_WN = (scores_WN3[..., edge] for edge in range(3))
        spans = []
        for first, label in np.argwhere(begin_WN > threshold).tolist():
            for last in (first + np.flatnonzero(end_WN[first:, label] > threshold)).tolist():
                inside = inside_WN[first : last + 1, label].tolist()
                if min(inside) >= threshold:
                    score = min(*inside, float(begin_WN[first, label]), float(end_WN[last, label]))
                    spans.append(Span(first, last, label, score))
        return spans


def _of_spans(logits_WKN: Floats, threshold: float) -> list[Span]:
    """Spans with a score above ``threshold`` that end inside the text."""
    scores_WKN = sigmoid(logits_WKN)
    above = np.argwhere(scores_WKN > threshold).tolist()
    return [
        Span(first, first + width, label, float(scores_WKN[first, width, label]))
        for first, width, label in above
        if first + width < len(scores_WKN)
    ]


def _without_overlaps(spans: list[Span], *, nested: bool, several: bool) -> list[Span]:
    """The spans with the highest scores among overlapping ones, in the order of the text."""
    chosen: list[Span] = []
    for span in sorted(spans, key=lambda span: -span.score):
        if not any(span.overlaps(other, nested=nested, several=several) for other in chosen):
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.first)


def _entity(text: str, places: Sequence[tuple[int, int]], span: Span, names: Sequence[str]) -> Entity:
    start, end = places[span.first][0], places[span.last][1]
    return {"start": start, "end": end, "text": text[start:end], "label": names[span.label], "score": span.score}


def _padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    padded_BN = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int64)
    for number, indices in enumerate(rows):
        padded_BN[number, : len(indices)] = indices
    return padded_BN

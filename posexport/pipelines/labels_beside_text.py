"""``zero-shot-classification`` by a model that reads all labels beside the text, as gliclass' pipeline (0.1.21).

Stepanov et al., "GLiClass" (arXiv:2508.07662). Its keys in config.json say on which side of the text labels are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.options.check import check_choice
from posexport.pipelines.pipeline import check_threshold, sigmoid, softmax
from posexport.pipelines.text_pipeline import TextPipeline
from posexport.pipelines.zero_shot import NamedLabels, listed_labels
from posexport.runtime.batches import Batches
from posexport.runtime.scores import LOGITS

_LABEL, _END = "<<LABEL>>", "<<SEP>>"
KINDS = ("multi-label", "single-label")
#: tokens of labels and text, the library's default
_LENGTH = 1024


class LabelsBesideText(NamedLabels, TextPipeline):
    """Inputs are texts."""

    def setup(self) -> None:
        super().setup()
        rules = self.files.config
        vocabulary = rules.get("vocab_size") or (rules.get("encoder_config") or {}).get("vocab_size", 0)
        stated = (rules.get("class_token_index", -1), rules.get("text_token_index", -1))
        # the library's numbers where the file has none
        self._label_id, self._text_id = (
            vocabulary + number if index == -1 else index for number, index in enumerate(stated)
        )
        self._labels_first = bool(rules.get("prompt_first", False))
        by_token = rules.get("class_token_pooling", "first") == "first"
        self._behind = int(by_token and not rules.get("embed_class_token", True))
        self._needs_start = any(spec.name == "text_indices" for spec in self.session.inputs)
        # indices count tokens from the start of a row
        self.texts.padding_side = "right"

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        candidate_labels: str | Sequence[str] | None = None,
        threshold: float = 0.5,
        classification_type: str = KINDS[0],
        prompt: str = "",
        max_length: int = _LENGTH,
    ) -> list[list[dict[str, Any]]]:
        """``{"label", "score"}`` of the labels that fit each text, in their order.

        Args:
            items: texts.
            batches: of calls.
            candidate_labels: a list, or a text with commas.
            threshold: a label fits from this score on.
            classification_type: ``multi-label``: each label is scored by itself; ``single-label``: the best one, by a
                softmax over all.
            prompt: what the task is, between labels and text.
            max_length: labels and text are cut at so many tokens.
        """
        if isinstance(candidate_labels, Mapping):
            raise PosexportError(
                "candidate_labels is a dictionary, and labels of labels are not read here; name each as one text, such "
                "as 'topic.music'"
            )
        labels = listed_labels(candidate_labels)
        check_choice("classification_type", classification_type, KINDS)
        check_threshold(threshold)
        if not isinstance(prompt, str):
            raise PosexportError(f"prompt must be a text, got {prompt!r:.60}; give one string for all texts")
        for number, item in enumerate(items):
            if not isinstance(item, str):
                raise PosexportError(f"input {number} must be a text, got {type(item).__name__}; give a string")
        beside = "".join(f"{_LABEL}{label}" for label in labels) + _END + prompt
        rows = self.encoded(
            [beside + item if self._labels_first else item + beside for item in items],
            truncation=True,
            max_length=max_length,
        )
        answers: list[list[dict[str, Any]]] = [[] for _ in items]
        for chosen in self._calls([len(row.ids) for row in rows], batches):
            called = [rows[number] for number in chosen]
            feeds = self.texts.padded(called)
            feeds["label_indices"] = np.array([self._markers(row.ids, len(labels)) for row in called])
            if self._needs_start:
                feeds["text_indices"] = np.array([[self._start(row.ids)] for row in called])
            logits_BN = self.session.run(feeds, outputs=[LOGITS])[LOGITS].astype(np.float32, copy=False)
            for number, logits_N in zip(chosen, logits_BN, strict=True):
                alone = classification_type == KINDS[1]
                scores = (softmax if alone else sigmoid)(logits_N).tolist()
                best = scores.index(max(scores))
                answers[number] = [
                    {"label": label, "score": score}
                    for place, (label, score) in enumerate(zip(labels, scores, strict=True))
                    if (place == best if alone else score >= threshold)
                ]
        return answers

    def _markers(self, ids: Sequence[int], count: int) -> list[int]:
        """The token that stands for each label; -1 for those that were cut off."""
        places = [place + self._behind for place, token in enumerate(ids) if token == self._label_id]
        found = [place for place in places if place < len(ids)][:count]
        if not found:
            raise PosexportError(
                f"a text has no label in {len(ids)} tokens: behind it they are cut off; shorten it, or give a larger "
                "max_length"
            )
        return [*found, *[-1] * (count - len(found))]

    def _start(self, ids: Sequence[int]) -> int:
        """Where the text starts: the first token of that id, or token 0 where it was cut off, as in the library."""
        return next((place for place, token in enumerate(ids) if token == self._text_id), 0)

"""``zero-shot-classification`` with a model that reads all labels and the text as one input, as gliclass 0.1.21 does.

Stepanov et al., "GLiClass" (arXiv:2508.07662). config.json says whether the labels precede or follow the text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import check_threshold
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.pipelines.zero_shot import NamedLabels, listed_labels
from posexport.run.scores import LOGITS

_LABEL, _END = "<<LABEL>>", "<<SEP>>"
KINDS = ("multi-label", "single-label")
#: number of tokens to which labels and text are truncated, gliclass' default
_LENGTH = 1024


class LabelsBesideText(NamedLabels, TextPipeline):
    """Scores texts for labels that the caller names, by a bundle of a gliclass model; inputs are texts."""

    def setup(self) -> None:
        super().setup()
        rules = self.files.config
        vocabulary = rules.get("vocab_size") or (rules.get("encoder_config") or {}).get("vocab_size", 0)
        stated = (rules.get("class_token_index", -1), rules.get("text_token_index", -1))
        # gliclass' defaults if config.json has no ids
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
        """The labels that apply to each text, as ``{"label", "score"}``, in the order of the labels.

        Args:
            items: texts.
            batches: batch sizes of the calls.
            candidate_labels: a list, or a comma-separated string.
            threshold: labels with this score or a higher one are returned.
            classification_type: ``multi-label``: the score of each label is a sigmoid; ``single-label``: only the best
                label is returned, with its softmax over all labels.
            prompt: a description of the task, between labels and text.
            max_length: number of tokens to which labels and text are truncated.
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
        """The index of the token that represents each label; -1 for labels that were truncated."""
        places = [place + self._behind for place, token in enumerate(ids) if token == self._label_id]
        found = [place for place in places if place < len(ids)][:count]
        if not found:
            raise PosexportError(
                f"a text has no label in {len(ids)} tokens: behind it they are cut off; shorten it, or give a larger "
                "max_length"
            )
        return [*found, *[-1] * (count - len(found))]

    def _start(self, ids: Sequence[int]) -> int:
        """Index of the start of the text: the first token with that id, or 0 if it was truncated, as in gliclass."""
        return next((place for place, token in enumerate(ids) if token == self._text_id), 0)

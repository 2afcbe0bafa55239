"""``zero-shot-object-detection``: boxes in pixels for labels that the caller names (OWL-ViT, arXiv:2205.06230).

A label is a text, each box has a logit for every text, and its score is the logit's sigmoid. OWLv2 (arXiv:2306.09683)
reads pictures that are padded to a square, so its boxes are shares of the longer edge.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.run.activations import sigmoid
from posexport.run.batches import Batches
from posexport.run.pipelines.images import ImagePipeline
from posexport.run.pipelines.object_detection import BOXES, box_of, in_pixels
from posexport.run.pipelines.pipeline import check_threshold
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.pipelines.zero_shot import NamedLabels, checked_labels
from posexport.run.scores import LOGITS

#: models with a logit for every text; Grounding DINO's are of words
_BY_TEXT = ("owlvit", "owlv2")


class ZeroShotObjectDetection(NamedLabels, ImagePipeline, TextPipeline):
    """Inputs are pictures."""

    shortening = "shorter labels"

    def setup(self) -> None:
        if (kind := self.files.config.get("model_type")) not in _BY_TEXT:
            raise PosexportError(
                f"the logits of {kind} are of words of one text, and this pipeline scores texts "
                f"({', '.join(_BY_TEXT)}); use session.run"
            )
        ImagePipeline.setup(self)
        TextPipeline.setup(self)
        self._square = self.files.config.get("model_type") == "owlv2"

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        candidate_labels: Sequence[str] | None = None,
        threshold: float = 0.1,
        top_k: int | None = None,
    ) -> list[list[dict[str, Any]]]:
        """``[{"score", "label", "box": {"xmin", "ymin", "xmax", "ymax"}}, ...]`` of each picture, the likeliest first.

        Args:
            items: pictures.
            batches: of calls.
            candidate_labels: a list of texts.
            threshold: only boxes of higher scores, from 0 to 1.
            top_k: so many boxes at most.
        """
        labels = checked_labels(candidate_labels)
        check_threshold(threshold)
        feeds = dict(self.texts.padded(self.encoded(labels)))
        answers = []
        for (height, width), outputs in self.run_outputs(items, batches, [LOGITS, BOXES], feeds=feeds):
            longer = max(height, width)
            boxes_N4 = in_pixels(outputs[BOXES], (longer, longer) if self._square else (height, width))
            scores_NL = sigmoid(outputs[LOGITS])
            # of one label after the other, as transformers calls the model; then the likeliest first
            places = [place[::-1] for place in np.argwhere(np.float32(threshold) < scores_NL.T)]
            places.sort(key=lambda place: -scores_NL[tuple(place)])
            answers.append(
                [
                    {"score": float(scores_NL[box, label]), "label": labels[label], "box": box_of(boxes_N4[box])}
                    for box, label in places[:top_k]
                ]
            )
        return answers

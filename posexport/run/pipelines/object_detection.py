"""``object-detection``: boxes in pixels of the picture, each with a label and a score.

DETR (arXiv:2005.12872) has a logit for "no object" after those of the labels, and its scores are their softmax; models
trained with a focal loss (Deformable DETR, arXiv:2010.04159; RT-DETR, arXiv:2304.08069) have none, and every pair of a
box and a label is scored by a sigmoid.

Shape letters: Q object queries, L labels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.images import ImagePipeline
from posexport.run.pipelines.pipeline import check_threshold
from posexport.run.scores import LOGITS

BOXES = "pred_boxes"
#: pairs of a box and a label at most; of RT-DETR's image processor as many as queries
_BEST, _OF_QUERIES = 100, "RTDetr"
#: labels of a config.json that names none
_USUAL = 2


class ObjectDetection(ImagePipeline):
    """Inputs are pictures."""

    def answers(self, items: list[Any], batches: Batches, *, threshold: float = 0.5) -> list[list[dict[str, Any]]]:
        """``[{"score", "label", "box": {"xmin", "ymin", "xmax", "ymax"}}, ...]`` of each picture.

        Args:
            items: pictures.
            batches: of calls.
            threshold: only boxes of higher scores, from 0 to 1.
        """
        check_threshold(threshold)
        answers = []
        for size, outputs in self.run_outputs(items, batches, [LOGITS, BOXES]):
            scores_N, labels_N, boxes_N4 = self._scored(outputs[LOGITS], in_pixels(outputs[BOXES], size))
            kept = np.flatnonzero(scores_N > threshold)
            answers.append(
                [
                    {"score": float(scores_N[n]), "label": self._label(int(labels_N[n])), "box": box_of(boxes_N4[n])}
                    for n in kept
                ]
            )
        return answers

    def _scored(
        self, logits_QL: NDArray[Any], boxes_Q4: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Scores, labels and boxes in transformers' order: of the queries, or the best pairs first."""
        queries, logits = logits_QL.shape
        if logits == len(self._names) + 1:
            scores_QL = softmax(logits_QL)[:, :-1]
            return scores_QL.max(-1), scores_QL.argmax(-1), boxes_Q4
        pairs = sigmoid(logits_QL).ravel()
        most = queries if _OF_QUERIES in self._processor_name else _BEST
        best = np.argsort(-pairs, kind="stable")[:most]
        return pairs[best], best % logits, boxes_Q4[best // logits]

    @property
    def _names(self) -> dict[str, str]:
        names = self.files.config.get("id2label")
        return names if isinstance(names, dict) and names else {str(n): f"LABEL_{n}" for n in range(_USUAL)}

    def _label(self, number: int) -> str:
        if str(number) not in self._names:
            raise PosexportError(
                f"id2label of config.json names {len(self._names)} labels, and the model gives number {number}; "
                "correct it and convert again"
            )
        return str(self._names[str(number)])

    @property
    def _processor_name(self) -> str:
        settings = self.files.json("processor_config.json").get("image_processor")
        settings = settings if isinstance(settings, dict) else self.files.json("preprocessor_config.json")
        return str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")


def in_pixels(boxes_Q4: NDArray[Any], size: tuple[int, int]) -> NDArray[np.float32]:
    """Boxes (centre, width and height as shares of the picture) as their corners in pixels: x, y, x, y."""
    centre_Q2, edges_Q2 = boxes_Q4[:, :2], boxes_Q4[:, 2:]
    corners_Q4 = np.concatenate((centre_Q2 - np.float32(0.5) * edges_Q2, centre_Q2 + np.float32(0.5) * edges_Q2), 1)
    height, width = size
    scaled: NDArray[np.float32] = corners_Q4 * np.array([width, height, width, height], dtype=np.float32)
    return scaled


def box_of(box_4: NDArray[Any]) -> dict[str, int]:
    """Corners in whole pixels, cut off as transformers does."""
    return dict(zip(("xmin", "ymin", "xmax", "ymax"), (int(edge) for edge in box_4), strict=True))

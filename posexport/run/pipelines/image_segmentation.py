"""``image-segmentation``: masks of a picture with labels, of models that label every pixel or predict masks by queries.

MaskFormer (arXiv:2107.06278) and Mask2Former (arXiv:2112.01527): each query has a mask and logits over labels, the last
of which is "no object". The segments are the queries that win most of their mask.

Shape letters: Q queries, L labels, H height, W width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.batches import Batches
from posexport.run.images.interpolation import interpolate
from posexport.run.pipelines.images import ImagePipeline
from posexport.run.pipelines.pipeline import check_threshold
from posexport.run.scores import LOGITS

CLASSES, MASKS = "class_queries_logits", "masks_queries_logits"
#: the size that Mask2Former's masks are scaled to first, whatever the picture's
_MASK2FORMER, _FIRST = "mask2former", (384, 384)
_SEMANTIC, _PANOPTIC = "semantic", "panoptic"


class ImageSegmentation(ImagePipeline):
    """Inputs are pictures."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        subtask: str | None = None,
        threshold: float = 0.9,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.5,
    ) -> list[list[dict[str, Any]]]:
        """``[{"score", "label", "mask"}, ...]`` of each picture; masks are ``PIL.Image`` of 0 and 255, of its size.

        Args:
            items: pictures.
            batches: of calls.
            subtask: ``semantic`` (a mask for each label, without a score) or ``panoptic`` (for each object); None: the
                first that the model has.
            threshold: of panoptic masks, only those of higher scores.
            mask_threshold: pixels of a higher probability belong to a query's mask.
            overlap_mask_area_threshold: a query is a segment if it wins a larger share of its mask than this.
        """
        for share in (threshold, mask_threshold, overlap_mask_area_threshold):
            check_threshold(share)
        queries = MASKS in {spec.name for spec in self.session.outputs}
        choices = [_PANOPTIC, _SEMANTIC] if queries else [_SEMANTIC]
        check_choice("subtask", subtask or choices[0], choices)
        answers = []
        for size, outputs in self.run_outputs(items, batches, [CLASSES, MASKS] if queries else [LOGITS]):
            if queries and self.files.config.get("model_type") == _MASK2FORMER:
                outputs[MASKS] = interpolate(outputs[MASKS], _FIRST)
            if (subtask or choices[0]) == _SEMANTIC:
                answers.append(self._labelled(_semantic(outputs), size))
                continue
            segments = _segments(
                outputs[CLASSES], outputs[MASKS], size, threshold, mask_threshold, overlap_mask_area_threshold
            )
            answers.append(
                [
                    {"score": score, "label": self._label(label), "mask": _picture(mask_HW)}
                    for score, label, mask_HW in segments
                ]
            )
        return answers

    def _labelled(self, scores_LHW: NDArray[Any], size: tuple[int, int]) -> list[dict[str, Any]]:
        """A mask for every label that is the likeliest of a pixel."""
        map_HW = interpolate(scores_LHW, size).argmax(0)
        return [
            {"score": None, "label": self._label(int(label)), "mask": _picture(map_HW == label)}
            for label in np.unique(map_HW)
        ]

    def _label(self, number: int) -> str:
        names = self.files.config.get("id2label")
        if not isinstance(names, dict) or str(number) not in names:
            raise PosexportError(
                f"id2label of config.json does not name label {number}, which the model gives; correct it and convert "
                "again"
            )
        return str(names[str(number)])


def _semantic(outputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Scores over labels of every pixel of the model's map, [L, H, W]."""
    if LOGITS in outputs:
        return outputs[LOGITS]
    classes_QL, masks_QHW = softmax(outputs[CLASSES])[:, :-1], sigmoid(outputs[MASKS])
    scores: NDArray[Any] = np.einsum("ql,qhw->lhw", classes_QL, masks_QHW)
    return scores


def _segments(
    classes_QL: NDArray[Any],
    masks_QHW: NDArray[Any],
    size: tuple[int, int],
    threshold: float,
    mask_threshold: float,
    overlap: float,
) -> list[tuple[float, int, NDArray[np.bool_]]]:
    """Score, label and mask of every segment, in the order of the queries."""
    classes_QL = softmax(classes_QL)
    scores_Q, labels_Q = classes_QL.max(-1), classes_QL.argmax(-1)
    kept = (labels_Q != classes_QL.shape[1] - 1) & (scores_Q > threshold)
    if not kept.any():
        return []
    scores, labels = scores_Q[kept], labels_Q[kept]
    weighed_QHW = interpolate(sigmoid(masks_QHW[kept]), size) * scores[:, None, None]
    winner_HW = weighed_QHW.argmax(0)
    segments = []
    for query, (score, label) in enumerate(zip(scores, labels, strict=True)):
        mask_HW = winner_HW == query
        area, original = int(mask_HW.sum()), int((weighed_QHW[query] >= mask_threshold).sum())
        if area and original and area / original > overlap:
            segments.append((round(float(score), 6), int(label), mask_HW))
    return segments


def _picture(mask_HW: NDArray[np.bool_]) -> Any:
    from PIL import Image

    return Image.fromarray((mask_HW * 255).astype(np.uint8))

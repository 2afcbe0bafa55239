"""``mask-generation``: masks of all objects in a picture, or of the objects at points (SAM, arXiv:2304.02643).

Shape letters: G groups of points, P points of a group, M masks of a group, N masks, H height, W width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.bundle.read import locate
from posexport.run.images.folder import FILES, read_processor
from posexport.run.images.interpolation import interpolate
from posexport.run.images.sam import Sam2ImageProcessor
from posexport.run.pipelines.images import ImagePipeline, opened_picture, picture_size

MASKS, SCORES, POINTS, LABELS = "pred_masks", "iou_scores", "input_points", "input_labels"
Masks = NDArray[np.bool_]


class MaskGeneration(ImagePipeline):
    """Inputs are pictures."""

    def setup(self) -> None:
        super().setup()
        directory, stored = self.session.directory, self.session.manifest.files
        contents = {name: locate(directory, name).read_bytes() for name in FILES if name in stored}
        prepares = read_processor(contents, str(directory))
        if not isinstance(prepares, Sam2ImageProcessor):
            raise PosexportError(
                f"the image processor of {directory} is {type(prepares).__name__}, which places no points; prepare "
                "pixel_values and input_points with transformers and give them to run"
            )
        self._prepares = prepares
        outputs = [spec.name for spec in self.session.outputs]
        self._features = [name for name in outputs if name.startswith("image_")]

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        input_points: Sequence[Any] | None = None,
        input_labels: Sequence[Any] | None = None,
        input_boxes: Sequence[Any] | None = None,
        points_per_batch: int = 64,
        points_per_crop: int = 32,
        pred_iou_thresh: float = 0.88,
        stability_score_thresh: float = 0.95,
        stability_score_offset: float = 1,
        mask_threshold: float = 0,
        crops_nms_thresh: float = 0.7,
        output_bboxes_mask: bool = False,
    ) -> list[Any]:
        """``{"masks", "scores"}`` of each picture: masks [height, width] of true and false, the best first.

        Args:
            items: pictures.
            batches: without effect: a picture is read alone.
            input_points: columns and rows of points in pixels of the picture, [[x, y], ...] of one object or
                [[[x, y], ...], ...] of several. Then ``masks`` is [objects, masks, height, width] and ``scores``
                [objects, masks], without a filter. None: a grid of points, and the options below.
            input_labels: of every point 1 for the object, 0 for the background; None: 1.
            input_boxes: refused: the graphs read points.
            points_per_batch: points in a call.
            points_per_crop: points in a row and a column of the grid.
            pred_iou_thresh: the score that a mask must have, as the model predicts it.
            stability_score_thresh: the share of a mask that must be left at a higher threshold.
            stability_score_offset: how much higher, and lower for the whole.
            mask_threshold: the logit of a pixel of a mask.
            crops_nms_thresh: if the boxes of two masks overlap by more, the better mask stays.
            output_bboxes_mask: ``bounding_boxes`` too.
        """
        if input_boxes is not None:
            raise PosexportError("input_boxes are not read by this bundle's graphs; give input_points of the object")
        if points_per_batch < 1 or points_per_crop < 1:
            raise PosexportError(
                f"points_per_batch and points_per_crop must be at least 1, got {points_per_batch}, {points_per_crop}"
            )
        results = []
        for item in items:
            picture = opened_picture(item)
            size, features = picture_size(picture), self._encoded(picture)
            if input_points is not None:
                points_GP2, labels_GP = prompts(input_points, input_labels, size)
                masks_GMHW, scores_GM = self._decoded(features, points_GP2, labels_GP, size)
                results.append({"masks": masks_GMHW > mask_threshold, "scores": scores_GM})
                continue
            kept: list[tuple[Masks, NDArray[np.float32]]] = []
            points_G2 = grid(points_per_crop, size)
            for start in range(0, len(points_G2), points_per_batch):
                some_GP2 = points_G2[start : start + points_per_batch, None]
                masks, scores = self._decoded(features, some_GP2, np.ones(some_GP2.shape[:2], np.int64), size)
                masks_NHW, scores_N = masks.reshape(-1, *size), scores.reshape(-1)
                stable_N = stability(masks_NHW, mask_threshold, stability_score_offset)
                good_N = (scores_N > pred_iou_thresh) & (stable_N > stability_score_thresh)
                kept.append((masks_NHW[good_N] > mask_threshold, scores_N[good_N]))
            found_NHW, best_N = (np.concatenate(parts) for parts in zip(*kept, strict=True))
            boxes_N4 = boxes_of(found_NHW)
            best = suppressed(boxes_N4, best_N, crops_nms_thresh)
            answer: dict[str, Any] = {"masks": [found_NHW[n] for n in best], "scores": best_N[best]}
            results.append(answer | ({"bounding_boxes": boxes_N4[best]} if output_bboxes_mask else {}))
        return results

    def _encoded(self, picture: Any) -> dict[str, NDArray[Any]]:
        """Run the image encoder."""
        return self.session.run(self.processor([picture]), outputs=self._features)

    def _decoded(
        self,
        features: dict[str, NDArray[Any]],
        points_GP2: NDArray[np.float64],
        labels_GP: NDArray[np.int64],
        size: tuple[int, int],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits of the masks of every group in the size of the picture, and their scores."""
        points = self._prepares.points(points_GP2, size)
        inputs = {**features, POINTS: points[None], LABELS: labels_GP[None]}
        outputs = self.session.run(inputs, outputs=[MASKS, SCORES])
        masks = outputs[MASKS][0].astype(np.float32)
        # in two steps where the picture was padded, as transformers does
        height, width = self._prepares.shape_of(size)
        if (height, width) != self._prepares.padded():
            masks = interpolate(masks, self._prepares.padded())[..., :height, :width]
        return interpolate(masks, size), outputs[SCORES][0].astype(np.float32)


def prompts(points: Any, labels: Any, size: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points of a picture [G, P, 2] and their labels [G, P], of one group or several.

    Raises PosexportError for points outside of the picture, which has height and width ``size``.
    """
    try:
        points_GP2 = np.asarray(points, np.float64)
        labels_GP = np.ones(points_GP2.shape[:-1], np.int64) if labels is None else np.asarray(labels, np.int64)
    except (ValueError, TypeError) as err:
        raise PosexportError(f"input_points and input_labels must be lists of one length in each group: {err}") from err
    if points_GP2.ndim == 2:
        points_GP2, labels_GP = points_GP2[None], labels_GP[None]
    if points_GP2.ndim != 3 or points_GP2.shape[-1] != 2 or labels_GP.shape != points_GP2.shape[:-1]:
        raise PosexportError(
            f"input_points must be [[x, y], ...] or [[[x, y], ...], ...] with a label for each point, got the shapes "
            f"{list(points_GP2.shape)} and {list(labels_GP.shape)}"
        )
    height, width = size
    outside_GP = ~((points_GP2 >= 0) & (points_GP2 <= (width, height))).all(-1)
    if outside_GP.any():
        x, y = points_GP2[outside_GP][0]
        raise PosexportError(
            f"input_points has a point at x = {x:g}, y = {y:g}, outside of the picture of {width} x {height} pixels; "
            f"give x from 0 to {width} and y from 0 to {height}"
        )
    if not np.isin(labels_GP, (0, 1)).all():
        raise PosexportError(f"input_labels holds {labels_GP[~np.isin(labels_GP, (0, 1))][0]}; give 1 or 0")
    return points_GP2, labels_GP


def grid(edge: int, size: tuple[int, int]) -> NDArray[np.float64]:
    """Points in the middle of ``edge`` x ``edge`` parts of a picture, row by row, [G, 2]."""
    at = np.linspace(1 / (2 * edge), 1 - 1 / (2 * edge), edge)
    return np.stack((np.tile(at, edge), np.repeat(at, edge)), -1) * size[::-1]


def stability(masks_NHW: NDArray[np.float32], threshold: float, offset: float) -> NDArray[np.float32]:
    """Of every mask, the pixels above a higher threshold as a share of those above a lower one; 0 of an empty one."""
    high_N, low_N = ((masks_NHW > threshold + sign * offset).sum((1, 2)) for sign in (1, -1))
    shares_N: NDArray[np.float32] = (high_N / np.maximum(low_N, 1)).astype(np.float32)
    return shares_N


def boxes_of(masks_NHW: Masks) -> NDArray[np.int64]:
    """Left, top, right and bottom pixel of every mask, [N, 4]; zeros of an empty one."""
    edges = []
    for axis in (1, 2):
        lines: Masks = np.any(masks_NHW, axis=axis)
        first, last = lines.argmax(1), lines.shape[1] - 1 - lines[:, ::-1].argmax(1)
        edges.append((first, np.where(lines.any(1), last, 0)))
    (left, right), (top, bottom) = edges
    return np.stack((left, top, right, bottom), -1)


def suppressed(boxes_N4: NDArray[np.int64], scores_N: NDArray[np.float32], most: float) -> NDArray[np.int64]:
    """The boxes that stay, the best first: those that overlap a better one by more than ``most`` go (NMS)."""
    boxes = boxes_N4.astype(np.float32)
    areas_N = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left, kept = np.argsort(-scores_N, kind="stable"), []
    while len(left):
        best, rest = left[0], left[1:]
        kept.append(best)
        low, high = np.maximum(boxes[best, :2], boxes[rest, :2]), np.minimum(boxes[best, 2:], boxes[rest, 2:])
        shared = (high - low).clip(min=0).prod(1)
        union = areas_N[best] + areas_N[rest] - shared
        left = rest[shared <= most * union]
    return np.asarray(kept, np.int64)

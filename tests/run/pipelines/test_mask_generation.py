"""Masks of a picture: the steps behind the model by numbers, bad points in a sentence, and as transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers.images import PICTURES
from posexport import PosexportError
from posexport.run.images.sam import Sam2ImageProcessor, SamImageProcessor
from posexport.run.pipelines.mask_generation import boxes_of, grid, prompts, stability, suppressed
from tests.tolerances import agree

PICTURE = str(PICTURES / "colour.png")
SIZE = (30, 50)


def test_points_are_placed_in_the_prepared_picture() -> None:
    points = np.array([[[50.0, 30.0], [0, 15]]])
    sam = SamImageProcessor(size={"longest_edge": 47}, pad_size={"height": 48, "width": 48})
    assert (sam.shape_of(SIZE), sam.padded()) == ((28, 47), (48, 48))
    agree(sam.points(points, SIZE), [[[47, 28], [0, 14]]], "rounded", np.float32)
    sam2 = Sam2ImageProcessor(size={"height": 64, "width": 64})
    agree(sam2.points(points, SIZE), [[[64, 64], [0, 32]]], "rounded", np.float32)
    agree(grid(2, SIZE), [[12.5, 7.5], [37.5, 7.5], [12.5, 22.5], [37.5, 22.5]], "rounded", np.float64)


def test_boxes_stability_and_suppression() -> None:
    masks = np.zeros((3, 6, 9), np.float32) - 5
    masks[0, 1:4, 2:8] = 5
    masks[0, 4, 2:8] = 0.5
    masks[1, 1:5, 3:8] = 9
    assert boxes_of(masks > 0).tolist() == [[2, 1, 7, 4], [3, 1, 7, 4], [0, 0, 0, 0]]
    agree(stability(masks, 0, 1), [0.75, 1, 0], "rounded", np.float32)
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [0, 0, 4, 4]])
    scores = np.array([0.5, 0.9, 0.4, 0.8], np.float32)
    assert suppressed(boxes, scores, 0.7).tolist() == [1, 3, 2]
    assert suppressed(boxes, scores, 0.95).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("points", "labels", "said"),
    [
        ([[50, 31]], None, r"at x = 50, y = 31, outside of the picture of 50 x 30 pixels; give x from 0 to 50"),
        ([[[1, 2]], [[-1, 2]]], None, "at x = -1, y = 2, outside"),
        ([[np.nan, 2]], None, "at x = nan, y = 2, outside"),
        ([[1, 2, 3]], None, r"must be \[\[x, y\], ...\] .* got the shapes \[1, 1, 3\]"),
        ([[1, 2]], [1, 0], r"a label for each point, got the shapes \[1, 1, 2\] and \[1, 2\]"),
        ([[1, 2], [3]], None, "must be lists of one length"),
        ([[1, 2]], [3], "input_labels holds 3; give 1 or 0"),
    ],
)
def test_bad_prompts_are_one_sentence(points: Any, labels: Any, said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        prompts(points, labels, SIZE)


@pytest.mark.all
@pytest.mark.parametrize("kind", ["sam", "sam2"])
def test_as_transformers(kind: str, tmp_path: Path) -> None:
    """Masks of points, and of a grid of them, which transformers filters with torchvision."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    import torch
    from PIL import Image

    from ci.through import tiny

    folder = tmp_path / kind
    tiny.make(folder, tiny.table()[kind])
    if kind == "sam":
        size = {"size": {"longest_edge": 47}, "pad_size": {"height": 48, "width": 48}}
        library = transformers.SamImageProcessorPil(**size)
        processor = transformers.SamProcessor(image_processor=library)
    else:
        pytest.importorskip("torchvision", exc_type=ImportError)
        library = transformers.Sam2ImageProcessor(size={"height": 64, "width": 64})
        processor = transformers.Sam2Processor(image_processor=library)
    library.save_pretrained(folder)
    posexport.convert(folder, tmp_path / "bundle", verify=False)
    segment = posexport.pipeline(tmp_path / "bundle")
    picture = Image.open(PICTURE).convert("RGB")
    points, labels = [[[11, 7], [30, 20]], [[3, 25], [40, 2]]], [[1, 0], [1, 1]]
    # points, as the processor, the model and the processor again
    model = getattr(transformers, "SamModel" if kind == "sam" else "Sam2Model").from_pretrained(folder).eval()
    inputs = processor(images=picture, input_points=[points], input_labels=[labels], return_tensors="pt")
    sizes = [inputs.pop(name) for name in ("original_sizes", "reshaped_input_sizes") if name in inputs]
    with torch.no_grad():
        outputs = model(**inputs.to(torch.float32), multimask_output=True)
    masks = library.post_process_masks(outputs.pred_masks, *sizes, binarize=False)[0].numpy()
    found = segment(picture, input_points=points, input_labels=labels)
    agree(found["scores"], outputs.iou_scores[0].numpy(), "model in float32", np.float32)
    clear = np.abs(masks) > 1e-4 * np.abs(masks).max()
    assert found["masks"].shape == masks.shape
    assert (found["masks"] == (masks > 0))[clear].all()
    # the grid: every mask is one of a point's masks, the best first
    everything: dict[str, Any] = {
        "pred_iou_thresh": -1e9,
        "stability_score_offset": 1e-5,
        "crops_nms_thresh": 1.0,
        "points_per_crop": 4,
        "points_per_batch": 5,
    }
    answer = segment(picture, output_bboxes_mask=True, **everything)
    of_points = segment(picture, input_points=grid(4, picture.size[::-1])[:, None].tolist())["masks"]
    assert len(answer["masks"]) == len(answer["scores"]) == len(answer["bounding_boxes"]) > 1
    assert all((mask == of_points.reshape(-1, *mask.shape)).all((1, 2)).any() for mask in answer["masks"])
    assert (np.diff(answer["scores"]) <= 0).all()
    with pytest.raises(PosexportError, match="input_boxes are not read by this bundle's graphs; give input_points"):
        segment(picture, input_boxes=[[0, 0, 9, 9]])

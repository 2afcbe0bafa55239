"""Boxes, masks and maps of pictures: as ``transformers.pipeline`` returns them for the same tiny checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers.images import PICTURES
from posexport import PosexportError
from tests.tolerances import agree

COLOUR, TURNED, GREY = (str(PICTURES / name) for name in ("colour.png", "turned.jpg", "grey.png"))
#: the image processor of transformers for each checkpoint of ci/through/checkpoints.yaml
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "detr": ("DetrImageProcessorPil", {"size": {"shortest_edge": 40, "longest_edge": 70}}),
    "conditional_detr": ("ConditionalDetrImageProcessorPil", {"size": {"shortest_edge": 40, "longest_edge": 70}}),
    "yolos": ("YolosImageProcessorPil", {"size": {"shortest_edge": 40, "longest_edge": 70}}),
    "segformer": ("SegformerImageProcessorPil", {"size": {"height": 64, "width": 96}}),
    "depth_anything": (
        "DPTImageProcessorPil",
        {"size": {"height": 40, "width": 40}, "keep_aspect_ratio": True, "ensure_multiple_of": 4},
    ),
    "maskformer": ("MaskFormerImageProcessorPil", {"size": {"shortest_edge": 80, "longest_edge": 200}}),
    "mask2former": ("Mask2FormerImageProcessorPil", {"size": {"shortest_edge": 80, "longest_edge": 200}}),
    "rt_detr": ("RTDetrImageProcessorPil", {"size": {"height": 64, "width": 96}}),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The folder of a checkpoint and its bundle."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    made: dict[str, tuple[Path, Path]] = {}

    def folder_and_bundle(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            from ci.through import tiny

            at = tmp_path_factory.mktemp(kind)
            tiny.make(at / kind, tiny.table()[kind])
            name, settings = PROCESSORS[kind]
            getattr(transformers, name)(**settings).save_pretrained(at / kind)
            posexport.convert(at / kind, at / "bundle", verify=False)
            made[kind] = at / kind, at / "bundle"
        return made[kind]

    return folder_and_bundle


def library(task: str, folder: Path) -> Any:
    """``transformers.pipeline`` with its image processor by Pillow and NumPy."""
    import transformers

    transformers.logging.set_verbosity_error()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return transformers.pipeline(task, model=str(folder), image_processor=processor, device="cpu")


@pytest.mark.all(but=("yolos",))
@pytest.mark.parametrize("kind", ["detr", "conditional_detr", "yolos", "rt_detr"])
def test_boxes_as_the_library(kind: str, checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    folder, bundle = checkpoint(kind)
    theirs, ours = library("object-detection", folder), posexport.pipeline(bundle)
    assert ours.task == "object-detection"
    for picture in (COLOUR, TURNED, GREY):
        for threshold in (0.0, 0.6):
            expected, found = theirs(picture, threshold=threshold), ours(picture, threshold=threshold)
            assert [item["label"] for item in found] == [item["label"] for item in expected]
            if expected:
                mine, other = (np.array([item["score"] for item in items]) for items in (found, expected))
                agree(mine, other, "another library", np.float32)
            for item, reference in zip(found, expected, strict=True):
                # a corner between two pixels may be in either
                assert all(abs(item["box"][edge] - reference["box"][edge]) <= 1 for edge in reference["box"])
    assert len(ours([COLOUR, TURNED], threshold=0.0)) == 2


@pytest.mark.all
def test_masks_of_labels_as_the_library(checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    folder, bundle = checkpoint("segformer")
    theirs, ours = library("image-segmentation", folder), posexport.pipeline(bundle)
    for picture in (COLOUR, TURNED):
        expected, found = theirs(picture), ours(picture)
        assert [(item["score"], item["label"]) for item in found] == [(e["score"], e["label"]) for e in expected]
        for mine, other in zip(found, expected, strict=True):
            # a pixel with two labels that are equal but for rounding may differ
            assert (np.asarray(mine["mask"]) != np.asarray(other["mask"])).sum() <= 2
    with pytest.raises(PosexportError, match="subtask must be one of semantic, got 'panoptic'"):
        ours(COLOUR, subtask="panoptic")


@pytest.mark.all
@pytest.mark.parametrize("kind", ["maskformer", "mask2former"])
def test_masks_of_queries_as_the_library(kind: str, checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    folder, bundle = checkpoint(kind)
    theirs, ours = library("image-segmentation", folder), posexport.pipeline(bundle)
    options: dict[str, Any] = {"threshold": 0.3, "overlap_mask_area_threshold": 0.1}
    expected, found = theirs(COLOUR, **options), ours(COLOUR, **options)
    assert expected
    assert [item["label"] for item in found] == [item["label"] for item in expected]
    for mine, other in zip(found, expected, strict=True):
        agree(mine["score"], other["score"], "another library", np.float32)
        assert (np.asarray(mine["mask"]) != np.asarray(other["mask"])).sum() <= 2
    # a label of a few pixels may be none, where no mask is above another but by rounding
    by_label = [
        {item["label"]: np.asarray(item["mask"]) for item in pipe(COLOUR, subtask="semantic")}
        for pipe in (theirs, ours)
    ]
    none = np.zeros_like(next(iter(by_label[0].values())))
    for label in by_label[0].keys() | by_label[1].keys():
        mine_HW, other_HW = (masks.get(label, none) for masks in by_label)
        assert (mine_HW != other_HW).sum() <= 4


@pytest.mark.all
def test_depth_as_the_library(checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    folder, bundle = checkpoint("depth_anything")
    theirs, ours = library("depth-estimation", folder), posexport.pipeline(bundle)
    for picture in (COLOUR, TURNED):
        expected, found = theirs(picture), ours(picture)
        depth = expected["predicted_depth"].numpy()
        agree(found["predicted_depth"], depth, "another library", np.float32)
        assert found["depth"].size == expected["depth"].size
        assert abs(np.asarray(found["depth"], int) - np.asarray(expected["depth"], int)).max() <= 1


def test_boxes_of_several_pictures_in_one_call(checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    """Pictures of other sizes are padded; the boxes of a picture alone are the same where the model reads the mask."""
    _, bundle = checkpoint("yolos")
    detect = posexport.pipeline(bundle, threshold=0.0)
    assert detect([COLOUR, COLOUR], batch_size=2) == [detect(COLOUR)] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": 2}, "threshold must be a number from 0 to 1, got 2"),
        ({"threshold": "0.5"}, "threshold must be a number from 0 to 1, got '0.5'"),
        ({"top_k": 2}, "the pipeline object-detection has no option top_k; it has threshold"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str, checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    _, bundle = checkpoint("yolos")
    with pytest.raises(PosexportError, match=said):
        posexport.pipeline(bundle)(COLOUR, **options)


def test_a_picture_below_a_patch(checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    _, bundle = checkpoint("yolos")
    session = posexport.load(bundle)
    pixels = session.prepare(images=[COLOUR], do_resize=False)["pixel_values"][:, :, :3, :9]
    with pytest.raises(PosexportError, match="height"):
        session.run({"pixel_values": pixels})


def test_labels_that_config_json_does_not_name(checkpoint: Callable[[str], tuple[Path, Path]]) -> None:
    _, bundle = checkpoint("yolos")
    detect = posexport.pipeline(bundle, threshold=0.0)
    names = json.loads((bundle / "config.json").read_text())["id2label"]
    assert {item["label"] for item in detect(COLOUR)} <= set(names.values())
    detect.files.config["id2label"] = {"7": "cat", "8": "dog", "9": "cow"}
    with pytest.raises(PosexportError, match=r"id2label of config.json names 3 labels, and the model gives number \d"):
        detect(COLOUR)

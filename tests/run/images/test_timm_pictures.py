"""timm's evaluation transform against timm itself, and by pixels whose values are their places."""

import json
from typing import Any

import numpy as np
import pytest

from posexport.errors import PosexportError
from posexport.run.images.folder import CONFIG, read_processor
from tests.tolerances import agree

PLAIN = {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}


def processor_of(**stated: Any) -> Any:
    """The processor of a folder of timm."""
    return read_processor({CONFIG: json.dumps({"architecture": "x", "pretrained_cfg": stated}).encode()}, "folder")


@pytest.mark.parametrize(("edge", "start"), [(9, 2), (11, 4), (10, 3), (4, 0), (3, 0), (1, -1)])
def test_a_crop_starts_at_the_even_pixel_of_two(edge: int, start: int) -> None:
    needed = 4
    picture = np.broadcast_to(np.arange(1, edge + 1, dtype=np.uint8)[:, None], (3, edge, edge))
    cropped = processor_of(input_size=[3, needed, needed]).center_crop(picture)
    rows = np.arange(start, start + needed) + 1
    assert cropped.shape == (3, needed, needed)
    assert cropped[0].max(1).tolist() == [row if 1 <= row <= edge else 0 for row in rows]


def test_defaults_are_timms() -> None:
    """Three channels of 224 pixels, 7/8 of the resized picture, bicubic, ImageNet's mean."""
    prepared = processor_of()
    assert prepared.sizes("size") == {"shortest_edge": 256}
    assert (prepared.resample, prepared.image_mean[0]) == (3, 0.485)
    assert processor_of(crop_mode="squash", crop_pct=0.9, input_size=[3, 18, 27]).sizes("size") == {
        "height": 20,
        "width": 30,
    }


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"crop_mode": "border"}, "crop_mode = 'border'"),
        ({"interpolation": "random"}, "interpolation = 'random'"),
        ({"input_size": [1, 28, 28]}, "three channels"),
        ({"input_size": [3, 28, 56]}, "to squares alone"),
    ],
)
def test_other_transforms_are_refused(stated: dict[str, Any], says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        processor_of(**stated)


@pytest.mark.all
@pytest.mark.parametrize(
    "stated",
    [
        {"input_size": [3, 37, 37], "crop_pct": 0.9, "interpolation": "bilinear", **PLAIN},
        {"input_size": [3, 38, 38], "crop_pct": 0.95, "crop_mode": "squash"},
        {"input_size": [3, 40, 40], "crop_pct": 1.0, "interpolation": "lanczos", "mean": [0.5] * 3, "std": [0.25] * 3},
    ],
)
def test_as_timm(stated: dict[str, Any]) -> None:
    data = pytest.importorskip("timm", exc_type=ImportError).data
    from PIL import Image

    transform = data.create_transform(**data.resolve_data_config(stated, model=None), is_training=False)
    random = np.random.default_rng(0)
    for edges in ((61, 83), (90, 55), (40, 40)):
        picture = Image.fromarray(random.integers(0, 256, (*edges, 3), dtype=np.uint8))
        actual = processor_of(**stated)([picture])["pixel_values"][0]
        agree(actual, transform(picture).numpy(), "operator", np.float32)

"""Videos have the frames of the configuration, and images that a loop cuts have the one size that it says."""

from types import SimpleNamespace
from typing import Any

import pytest

from posexport.base.spec import BATCH
from posexport.errors import PosexportError
from posexport.through.inputs import inputs_of
from posexport.through.pictures import reads_images


def model(forward: Any, **config: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(**config), forward=forward, main_input_name="pixel_values")


def pixels(pixel_values: Any) -> None: ...


def clips(pixel_values_videos: Any) -> None: ...


def test_a_video_has_frames() -> None:
    video = model(pixels, image_size=12, num_channels=1, num_frames=5)
    (spec,) = inputs_of("x", video)
    assert spec.axes == [BATCH, 5, 1, 12, 12]
    assert not reads_images(video)
    (spec,) = inputs_of("x", model(clips, frames_per_clip=3, in_chans=2, crop_size=7))
    assert (spec.name, spec.axes) == ("pixel_values_videos", [BATCH, 3, 2, 7, 7])


def test_images_that_are_drawn_again_are_squares() -> None:
    kind = type("XForMaskedImageModeling", (), {})
    squares = kind()
    squares.__dict__.update(vars(model(pixels, image_size=12)))
    assert not reads_images(squares)
    assert reads_images(model(pixels, image_size=12))


def test_an_image_that_is_cut_in_a_loop_has_one_size() -> None:
    cut = model(pixels, patch_size=12, scaled_images_ratios=[0.25, 0.5, 1])
    assert inputs_of("x", cut)[0].axes == [BATCH, 3, 48, 48]
    assert not reads_images(cut)
    with pytest.raises(PosexportError, match="it must say the sides of an image"):
        inputs_of("x", model(pixels, patch_size=12))

"""timm's evaluation transform of images, by ``pretrained_cfg`` in the config.json of its folders (timm 1.0.31)."""

from collections.abc import Mapping
from math import floor
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.run.images import processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processors import CLIPImageProcessor

KEY = "pretrained_cfg"
#: timm's names of filters
_FILTERS = {
    "nearest": processor.NEAREST,
    "bilinear": processor.BILINEAR,
    "bicubic": processor.BICUBIC,
    "box": processor.BOX,
    "hamming": processor.HAMMING,
    "lanczos": processor.LANCZOS,
}


class TimmWrapperImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Resizes and crops as torchvision does."""

    def center_crop(self, picture: Picture) -> Picture:
        """The middle of ``picture``; a start between two pixels is rounded to the even one."""
        needed = self._edges("crop_size")
        missing = [max(0, size - edge) for size, edge in zip(needed, picture.shape[1:], strict=True)]
        padded = np.pad(picture, [(0, 0), *((short // 2, (short + 1) // 2) for short in missing)])
        top, left = (round((edge - size) / 2) for size, edge in zip(needed, padded.shape[1:], strict=True))
        return padded[:, top : top + needed[0], left : left + needed[1]]


def settings_of(stated: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The settings of a `TimmWrapperImageProcessor` by ``pretrained_cfg``; ``place`` names the file in errors.

    Raises:
        PosexportError: timm prepares pictures in a way that posexport does not know.
    """
    # timm's defaults for keys that are missing or null
    channels, height, width = stated.get("input_size") or (3, 224, 224)
    share, mode = stated.get("crop_pct") or 0.875, stated.get("crop_mode") or "center"
    name = stated.get("interpolation") or "bicubic"
    if channels != 3 or name not in _FILTERS or mode not in ("center", "squash"):
        raise PosexportError(
            f"{place}: {KEY} says input_size = {[channels, height, width]}, interpolation = {name!r:.20}, crop_mode = "
            f"{mode!r:.20}; posexport prepares three channels by {', '.join(_FILTERS)}, in crop_mode center or "
            "squash; prepare pixel_values with timm and give them to run"
        )
    whole = {"height": floor(height / share), "width": floor(width / share)}
    if mode == "center" and height != width:
        raise PosexportError(
            f"{place}: {KEY} says input_size = {[channels, height, width]}, and posexport crops the middle of pictures "
            "to squares alone; prepare pixel_values with timm and give them to run"
        )
    return {
        "image_processor_type": TimmWrapperImageProcessor.__name__,
        "size": whole if mode == "squash" else {"shortest_edge": whole["height"]},
        "default_to_square": mode == "squash",
        "resample": _FILTERS[name],
        "crop_size": {"height": height, "width": width},
        "image_mean": list(stated.get("mean") or processor.IMAGENET_DEFAULT_MEAN),
        "image_std": list(stated.get("std") or processor.IMAGENET_DEFAULT_STD),
    }

"""The image processors of transformers for object detection: the mask of padding is an output too.

Settings of annotations are for training, and change nothing here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from posexport.run.images import operations, processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import Channels, ImageProcessor, default_size, stacked
from posexport.run.images.sizes import SizeSetting, resized

#: the longest edge where only the shortest one is named
_LONGEST = 1333
#: edges of YOLOS' images are multiples of it
_YOLOS_EDGE = 16


class DetrImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Defaults of detr and table-transformer. ``max_size`` is an older name of the longest edge."""

    UNREAD: ClassVar[frozenset[str]] = frozenset({"do_center_crop", "crop_size"})
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {"format", "do_convert_annotations", "return_segmentation_masks", "masks_path", "num_labels"}
    )

    do_resize: bool | None = True
    size: SizeSetting | None = default_size(shortest_edge=800, longest_edge=_LONGEST)
    max_size: int | None = None
    default_to_square: bool | None = False
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD
    do_pad: bool | None = True
    pad_and_return_pixel_mask: bool | None = None

    def completed(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """``settings`` with the longest edge, and the older name of ``do_pad``."""
        completed = dict(settings)
        if isinstance(settings.get("size"), int):
            completed["size"] = {
                "shortest_edge": settings["size"],
                "longest_edge": settings.get("max_size") or self.max_size or _LONGEST,
            }
        if settings.get("pad_and_return_pixel_mask") is not None:
            completed.setdefault("do_pad", settings["pad_and_return_pixel_mask"])
        return completed

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """``pixel_values``, and where pictures are padded ``pixel_mask`` [pictures, height, width], 0 at padding."""
        prepared = [self.one(picture) for picture in pictures]
        if not self.do_pad:
            return {"pixel_values": stacked(prepared)}
        height, width = self._padded(prepared)
        mask_BHW = np.zeros((len(prepared), height, width), dtype=np.int64)
        for mask_HW, picture in zip(mask_BHW, prepared, strict=True):
            mask_HW[: picture.shape[1], : picture.shape[2]] = 1
        return {"pixel_values": stacked(operations.pad(prepared, height, width)), "pixel_mask": mask_BHW}


class ConditionalDetrImageProcessor(DetrImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of conditional_detr."""


class DeformableDetrImageProcessor(DetrImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of deformable_detr."""


class RTDetrImageProcessor(DetrImageProcessor, frozen=True, kw_only=True):
    """Defaults of rt_detr, rt_detr_v2 and d_fine: stretched, neither normalized nor padded."""

    size: SizeSetting | None = default_size(height=640, width=640)
    do_normalize: bool | None = False
    do_pad: bool | None = False


class YolosImageProcessor(DetrImageProcessor, frozen=True, kw_only=True):
    """Defaults of yolos: edges that keep the proportions are cut to multiples of 16."""

    def resize(self, picture: Picture) -> Picture:
        """``picture`` resized to `size`."""
        size = self.sizes("size")
        height, width = resized(picture.shape, size)
        if "shortest_edge" in size:
            height, width = (max(edge - edge % _YOLOS_EDGE, 1) for edge in (height, width))
        return self.resized_to(picture, (height, width))

"""SigLIP 2's image processor (NaFlex): pictures of any shape as patches, padded to one number of them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.run.images import processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import BILINEAR, Channels, ImageProcessor

#: transformers searches the scale of a picture by halves, from nearly nothing to this
_LARGEST, _EPS = 100.0, 1e-5


class Siglip2ImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """``patch_size``: pixels along the edge of a patch; ``max_num_patches``: of a picture, with its padding."""

    UNREAD = frozenset({"do_center_crop", "crop_size", "do_pad", "pad_size", "size"})

    do_convert_rgb: bool | None = True
    do_resize: bool | None = True
    resample: int | None = BILINEAR
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD
    patch_size: int = 16
    max_num_patches: int = 256

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """``pixel_values`` [pictures, patches, values], ``pixel_attention_mask`` and ``spatial_shapes``."""
        edge, most = self.patch_size, self.max_num_patches
        values, shapes = [], []
        for picture in pictures:
            resized = self.resized_to(picture, self.whole_patches(picture.shape[1:])) if self.do_resize else picture
            channels, *edges = self.normalized(resized).shape
            rows, columns = (length // edge for length in edges)
            split = self.normalized(resized).reshape(channels, rows, edge, columns, edge)
            patches_PD = split.transpose(1, 3, 2, 4, 0).reshape(rows * columns, -1)
            values.append(np.pad(patches_PD, ((0, most - len(patches_PD)), (0, 0))))
            shapes.append((rows, columns))
        shapes_B2 = np.array(shapes, np.int64)
        mask_BP = (np.arange(most) < shapes_B2.prod(1, keepdims=True)).astype(np.int64)
        return {"pixel_values": np.stack(values), "pixel_attention_mask": mask_BP, "spatial_shapes": shapes_B2}

    def whole_patches(self, edges: Sequence[int]) -> tuple[int, int]:
        """The largest height and width of whole patches, at most ``max_num_patches``, as transformers finds them."""

        def scaled(scale: float) -> tuple[int, int]:
            height, width = (
                max(self.patch_size, math.ceil(edge * scale / self.patch_size) * self.patch_size) for edge in edges
            )
            return height, width

        low, high = _EPS / 10, _LARGEST
        while high - low >= _EPS:
            middle = (low + high) / 2
            height, width = scaled(middle)
            fits = (height / self.patch_size) * (width / self.patch_size) <= self.max_num_patches
            low, high = (middle, high) if fits else (low, middle)
        return scaled(low)

"""The image processors of SAM and SAM 2, and the places of a picture's points in the prepared picture."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from posexport.run.images import processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import BILINEAR, Channels, default_size
from posexport.run.images.processors import ViTImageProcessor
from posexport.run.images.sizes import SizeSetting


class Sam2ImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Defaults of sam2: every picture becomes a square."""

    WITHOUT_EFFECT = frozenset({"mask_size"})

    do_convert_rgb: bool | None = True
    size: SizeSetting | None = default_size(height=1024, width=1024)
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD

    def shape_of(self, edges: Sequence[int]) -> tuple[int, int]:
        """Height and width of a picture with ``edges``, resized and before padding."""
        del edges
        return self._edges("size")

    def padded(self) -> tuple[int, int]:
        """Height and width of the prepared picture."""
        return self._edges("size")

    def points(self, points_P2: NDArray[np.float64], edges: Sequence[int]) -> NDArray[np.float32]:
        """Columns and rows in a picture with height and width ``edges`` as those in the prepared picture."""
        height, width = self.shape_of(edges)
        return (points_P2 * (width / edges[1], height / edges[0])).astype(np.float32)


class SamImageProcessor(Sam2ImageProcessor, frozen=True, kw_only=True):
    """Defaults of sam: the longer edge is resized, and the shorter one is padded."""

    WITHOUT_EFFECT = frozenset({"mask_size", "mask_pad_size"})

    size: SizeSetting | None = default_size(longest_edge=1024)
    resample: int | None = BILINEAR
    do_pad: bool | None = True
    pad_size: SizeSetting | None = default_size(height=1024, width=1024)

    def shape_of(self, edges: Sequence[int]) -> tuple[int, int]:
        """Height and width of a picture with ``edges``, resized and before padding."""
        scale = self.sizes("size")["longest_edge"] / max(edges)
        return int(edges[0] * scale + 0.5), int(edges[1] * scale + 0.5)

    def padded(self) -> tuple[int, int]:
        """Height and width of the prepared picture."""
        return self._edges("pad_size")

    def resize(self, picture: Picture) -> Picture:
        """``picture`` with its longer edge as `size` says."""
        return self.resized_to(picture, self.shape_of(picture.shape[1:]))

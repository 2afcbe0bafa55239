"""The image processors of transformers for models of masks and depth: edges are multiples of a number."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from posexport.errors import PosexportError
from posexport.run.images import operations, processor
from posexport.run.images.detection import DetrImageProcessor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import BICUBIC, Channels, ImageProcessor, default_size
from posexport.run.images.processors import ViTImageProcessor
from posexport.run.images.sizes import SizeSetting, resized


class MaskFormerImageProcessor(DetrImageProcessor, frozen=True, kw_only=True):
    """Defaults of maskformer: the edges become multiples of ``size_divisor``, and a mask is always an output."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"ignore_index", "do_reduce_labels", "num_labels"})

    size_divisor: int | None = 32

    def resize(self, picture: Picture) -> Picture:
        """``picture`` resized to `size`, its edges up to the next multiples."""
        step = self.size_divisor or 1
        height, width = (math.ceil(edge / step) * step for edge in resized(picture.shape, self.sizes("size")))
        return self.resized_to(picture, (height, width))


class Mask2FormerImageProcessor(MaskFormerImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of mask2former."""


class DPTImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Defaults of dpt and depth_anything.

    ``keep_aspect_ratio``: both edges are scaled by the factor that is nearer to 1. ``ensure_multiple_of``: edges are
    rounded to multiples of it. ``size_divisor``: with ``do_pad``, zeros around the picture up to multiples of it.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"do_reduce_labels"})

    size: SizeSetting | None = default_size(height=384, width=384)
    resample: int | None = BICUBIC
    keep_aspect_ratio: bool | None = False
    ensure_multiple_of: int | None = 1
    size_divisor: int | None = None

    def resize(self, picture: Picture) -> Picture:
        """``picture`` resized to `size`."""
        height, width = picture.shape[1:]
        new_height, new_width = self._edges("size")
        by_row, by_column = new_height / height, new_width / width
        if self.keep_aspect_ratio:
            by_row = by_column = by_column if abs(1 - by_column) < abs(1 - by_row) else by_row
        step = self.ensure_multiple_of or 1
        edges = round(by_row * height / step) * step, round(by_column * width / step) * step
        if min(edges) < 1:
            raise PosexportError(
                f"a picture of {height} x {width} (height x width) would be resized to {edges[0]} x {edges[1]} with "
                f"ensure_multiple_of {step}; cut it to a less extreme shape"
            )
        return self.resized_to(picture, edges)

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, Any]:
        """``pixel_values`` of pictures in the middle of their padding."""
        if not self.do_pad or not self.size_divisor:
            return {"pixel_values": processor.stacked([self.one(picture) for picture in pictures])}
        step, padded = self.size_divisor, []
        for picture in map(self.one, pictures):
            height, width = (math.ceil(edge / step) * step for edge in picture.shape[1:])
            whole = operations.pad([picture], height, width)[0]
            shift = ((height - picture.shape[1]) // 2, (width - picture.shape[2]) // 2)
            whole[:] = 0
            whole[:, shift[0] : shift[0] + picture.shape[1], shift[1] : shift[1] + picture.shape[2]] = picture
            padded.append(whole)
        return {"pixel_values": processor.stacked(padded)}


class GLPNImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Defaults of glpn: edges are rounded down to multiples of ``size_divisor``; pixels are not normalized."""

    UNREAD: ClassVar[frozenset[str]] = frozenset({"size", "do_center_crop", "crop_size", "do_pad", "pad_size"})

    do_resize: bool | None = True
    size: SizeSetting | None = default_size(height=480, width=640)
    do_rescale: bool | None = True
    size_divisor: int = 32
    image_mean: Channels | None = None

    def resize(self, picture: Picture) -> Picture:
        """``picture`` with edges of whole multiples."""
        step = self.size_divisor
        edges = picture.shape[1] // step * step, picture.shape[2] // step * step
        if min(edges) < 1:
            raise PosexportError(
                f"a picture of {picture.shape[1]} x {picture.shape[2]} (height x width) is smaller than size_divisor "
                f"{step}; give a larger one"
            )
        return self.resized_to(picture, edges)

    def completed(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """``settings`` without the size, which is not read."""
        return {name: value for name, value in settings.items() if name != "size"}

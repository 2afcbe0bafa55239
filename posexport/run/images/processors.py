"""The image processors of transformers that are variants of `posexport.run.images.processor.ImageProcessor`.

transformers has it with torchvision alone; Pillow's filters on 32-bit pixels compute the same to 1e-5.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.images import operations, processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import BICUBIC, BILINEAR, NEAREST, Channels, ImageProcessor, default_size, stacked
from posexport.run.images.sizes import SizeSetting, by_shortest_edge, resized


class ViTImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Defaults of vit, swin, swinv2 and others."""

    do_resize: bool | None = True
    size: SizeSetting | None = default_size(height=224, width=224)
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD


class PvtImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of pvt and pvt_v2."""

    OLDER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"resample": BILINEAR}

    resample: int | None = BICUBIC
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD


class DeiTImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of deit."""

    resample: int | None = BICUBIC
    size: SizeSetting | None = default_size(height=256, width=256)
    do_center_crop: bool | None = True
    crop_size: SizeSetting | None = default_size(height=224, width=224)


class BeitImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Defaults of beit and data2vec-vision. ``do_reduce_labels`` is for the maps of segmentation, in training."""

    UNREAD: ClassVar[frozenset[str]] = frozenset({"do_pad", "pad_size"})
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"do_reduce_labels", "reduce_labels"})
    OLDER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"size": {"height": 256, "width": 256}, "do_center_crop": True}

    resample: int | None = BICUBIC
    do_center_crop: bool | None = False
    crop_size: SizeSetting | None = default_size(height=224, width=224)


class SegformerImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Defaults of segformer. ``do_reduce_labels`` is for the maps of segmentation, in training."""

    UNREAD: ClassVar[frozenset[str]] = frozenset({"do_center_crop", "crop_size", "do_pad", "pad_size"})
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"do_reduce_labels", "reduce_labels"})

    resample: int | None = BILINEAR
    size: SizeSetting | None = default_size(height=512, width=512)
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD


class CLIPImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of clip and others."""

    do_convert_rgb: bool | None = True
    do_resize: bool | None = True
    size: SizeSetting | None = default_size(shortest_edge=224)
    default_to_square: bool | None = False
    resample: int | None = BICUBIC
    do_center_crop: bool | None = True
    crop_size: SizeSetting | None = default_size(height=224, width=224)
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.OPENAI_CLIP_MEAN
    image_std: Channels | None = processor.OPENAI_CLIP_STD


class OwlViTImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of owlvit."""

    size: SizeSetting | None = default_size(height=768, width=768)
    default_to_square: bool | None = True
    do_center_crop: bool | None = False


class ChineseCLIPImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of chinese_clip."""


class BitImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Defaults of bit, dinov2, hiera and others."""


class BlipImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of blip."""

    do_convert_rgb: bool | None = True
    do_resize: bool | None = True
    size: SizeSetting | None = default_size(height=384, width=384)
    resample: int | None = BICUBIC
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.OPENAI_CLIP_MEAN
    image_std: Channels | None = processor.OPENAI_CLIP_STD


class SiglipImageProcessor(BlipImageProcessor, frozen=True, kw_only=True):
    """Defaults of siglip, gemma3's vision towers and others."""

    size: SizeSetting | None = default_size(height=224, width=224)
    default_to_square: bool | None = False
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD


class Gemma3ImageProcessor(BlipImageProcessor, frozen=True, kw_only=True):
    """Of gemma3; ``do_pan_and_scan``, which adds parts of long pictures, is refused."""

    UNREAD = frozenset({"do_center_crop", "crop_size", "do_pad", "pad_size"})
    WITHOUT_EFFECT = frozenset(
        {"pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate"}
    )

    size: SizeSetting | None = default_size(height=224, width=224)
    resample: int | None = BILINEAR
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD
    do_pan_and_scan: bool | None = None

    def check(self) -> None:
        """Also that nothing is to be scanned."""
        super().check()
        if self.do_pan_and_scan:
            raise PosexportError("do_pan_and_scan is true, and posexport prepares whole pictures alone; make it false")


class LevitImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of levit."""

    do_convert_rgb: bool | None = None
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD

    def resize(self, picture: Picture) -> Picture:
        """By ``shortest_edge`` times 256/224, or to height and width."""
        if edge := self.sizes("size").get("shortest_edge"):
            return self.resized_to(picture, by_shortest_edge(picture.shape, int((256 / 224) * edge)))
        return super().resize(picture)


class LlavaImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of llava."""

    UNREAD = frozenset({"pad_size"})

    do_pad: bool | None = False

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """Without the padding of a batch, which ``do_pad`` means elsewhere."""
        return {"pixel_values": stacked([self.one(picture) for picture in pictures])}

    def one(self, picture: Picture) -> Picture:
        """A picture made square, then through all other steps."""
        return super().one(squared(picture, self.image_mean) if self.do_pad else picture)


def squared(picture: Picture, mean: Channels | None) -> Picture:
    """``picture`` in the middle of a square of the colour ``mean``, which has values from 0 to 1."""
    channels, height, width = picture.shape
    if height == width:
        return picture
    # of a single number as mean, and of none, the library pads with black
    colour = mean if isinstance(mean, tuple) else (0,) * channels
    if len(colour) != channels:
        raise PosexportError(f"a picture has {channels} channels and image_mean {len(colour)}; give a picture in RGB")
    edge = max(height, width)
    operations.check_area(edge, edge)
    square = np.empty((channels, edge, edge), dtype=picture.dtype)
    square[:] = np.array([int(value * 255) for value in colour])[:, None, None]
    top, left = (edge - height) // 2, (edge - width) // 2
    square[:, top : top + height, left : left + width] = picture
    return square


class PoolFormerImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Of poolformer; ``crop_pct``: the part of the resized picture that is kept; None: pictures get `size` itself."""

    do_convert_rgb: bool | None = None
    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD
    crop_pct: float | None = 0.9

    def resize(self, picture: Picture) -> Picture:
        """With the picture's proportions by the edge of `size` / ``crop_pct``; to two different edges stretched."""
        if self.crop_pct is None:
            return super().resize(picture)
        size = self.sizes("size")
        if "shortest_edge" not in size and "height" not in size:
            raise PosexportError(f"size is {dict(size)}; give shortest_edge, or height and width")
        edges = [int(size[name] / self.crop_pct) for name in ("shortest_edge", "height", "width") if name in size]
        if len(set(edges)) == 1 or "shortest_edge" in size:
            return self.resized_to(picture, by_shortest_edge(picture.shape, edges[0]))
        return self.resized_to(picture, (edges[0], edges[1]))

    def check(self) -> None:
        """Also that ``crop_pct`` enlarges."""
        super().check()
        if self.do_resize and self.crop_pct is not None and not 0 < self.crop_pct <= 1:
            raise PosexportError(f"crop_pct is {self.crop_pct}; give the part that is kept, above 0 and at most 1")


#: from this edge on, pictures are stretched to a square and nothing is cut
_WHOLE = 384


class ConvNextImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Of convnext, resnet, regnet and others; ``crop_pct``: the part of the resized picture that is kept."""

    UNREAD = frozenset({"do_pad", "pad_size"})
    OLDER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"resample": BILINEAR}

    do_resize: bool | None = True
    size: SizeSetting | None = default_size(shortest_edge=_WHOLE)
    default_to_square: bool | None = False
    resample: int | None = BICUBIC
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD
    crop_pct: float = 224 / 256

    def resize(self, picture: Picture) -> Picture:
        """A square of `size`: of a picture resized by 1 / ``crop_pct``, its middle; from 384 on, stretched."""
        edge = self._edge
        if edge >= _WHOLE:
            return self.resized_to(picture, (edge, edge))
        larger = by_shortest_edge(picture.shape, int(edge / self.crop_pct))
        return operations.center_crop(self.resized_to(picture, larger), edge, edge)

    @property
    def _edge(self) -> int:
        size = self.sizes("size")
        if "shortest_edge" not in size:
            raise PosexportError(f"size is {dict(size)}; ConvNextImageProcessor resizes by shortest_edge, give that")
        return size["shortest_edge"]

    def check(self) -> None:
        """Also that ``crop_pct`` enlarges."""
        super().check()
        if self.do_resize and not 0 < self.crop_pct <= 1:
            raise PosexportError(f"crop_pct is {self.crop_pct}; give the part that is kept, above 0 and at most 1")
        if self.do_resize:
            _ = self._edge


class DINOv3ViTImageProcessor(ViTImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of dinov3_vit."""

    UNREAD = frozenset({"do_pad", "pad_size"})

    image_mean: Channels | None = processor.IMAGENET_DEFAULT_MEAN
    image_std: Channels | None = processor.IMAGENET_DEFAULT_STD

    def one(self, picture: Picture) -> Picture:
        """Rescaled, resized, cut, normalized."""
        if self.do_rescale and self.rescale_factor is not None:
            picture = picture.astype(np.float32) * np.float32(self.rescale_factor)
        if self.do_resize:
            picture = self.resize(picture)
        if self.do_center_crop:
            picture = self.center_crop(picture)
        if self.do_normalize and self.image_mean is not None and self.image_std is not None:
            picture = operations.normalize(picture, self.image_mean, self.image_std)
        return picture

    def resize(self, picture: Picture) -> Picture:
        """``picture`` at `size`; integers on 8 bits, real numbers as they are."""
        if picture.dtype.kind != "f":
            return super().resize(picture)
        height, width = resized(picture.shape, self.sizes("size"))
        return operations.resize_floats(picture, height, width, self.filter)


class EfficientNetImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Of efficientnet and align.

    ``rescale_offset``: 1 is subtracted after rescaling. ``include_top``: values are divided by ``image_std`` once more.
    """

    UNREAD = frozenset({"do_pad", "pad_size"})
    OLDER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"resample": NEAREST}

    do_resize: bool | None = True
    size: SizeSetting | None = default_size(height=346, width=346)
    resample: int | None = BICUBIC
    do_center_crop: bool | None = False
    crop_size: SizeSetting | None = default_size(height=289, width=289)
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD
    rescale_offset: bool | None = False
    include_top: bool | None = True

    def normalized(self, picture: Picture) -> Picture:
        """Rescaled, moved, normalized, and divided again."""
        if self.do_rescale and self.rescale_factor is not None:
            picture = operations.rescale(picture, self.rescale_factor)
            if self.rescale_offset:
                picture = picture - 1
        if self.do_normalize and self.image_mean is not None and self.image_std is not None:
            picture = operations.normalize(picture, self.image_mean, self.image_std)
        if self.include_top and self.image_std is not None:
            picture = operations.normalize(picture, 0, self.image_std)
        return picture

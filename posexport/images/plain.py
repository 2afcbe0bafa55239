"""Image processors of transformers that differ by their defaults alone."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posexport.images import processor
from posexport.images.processor import BICUBIC, BILINEAR, Channels, ImageProcessor, default_size
from posexport.images.sizes import SizeSetting


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

"""EfficientNet's image processor: rescaled to -1 ... 1 on demand, and divided by image_std twice."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posexport.images import operations, processor
from posexport.images.pictures import Picture
from posexport.images.processor import BICUBIC, NEAREST, Channels, ImageProcessor, default_size
from posexport.images.sizes import SizeSetting


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

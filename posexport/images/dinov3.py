"""DINOv3's image processor: pictures are resized as real numbers, after rescaling.

transformers has it with torchvision alone; Pillow's filters on 32-bit pixels compute the same to 1e-5.
"""

import numpy as np

from posexport.images import operations, processor
from posexport.images.pictures import Picture
from posexport.images.plain import ViTImageProcessor
from posexport.images.processor import Channels
from posexport.images.sizes import resized


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

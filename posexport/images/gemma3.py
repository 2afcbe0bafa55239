"""Gemma 3's image processor, without pan and scan."""

from posexport.errors import PosexportError
from posexport.images import processor
from posexport.images.plain import BlipImageProcessor
from posexport.images.processor import BILINEAR, Channels, default_size
from posexport.images.sizes import SizeSetting


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

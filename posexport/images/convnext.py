"""ConvNeXT's image processor: small pictures are resized to more than needed, then cut."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posexport.errors import PosexportError
from posexport.images import operations, processor
from posexport.images.pictures import Picture
from posexport.images.processor import BICUBIC, BILINEAR, Channels, ImageProcessor, default_size
from posexport.images.sizes import SizeSetting, by_shortest_edge

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

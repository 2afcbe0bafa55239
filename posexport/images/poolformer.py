"""PoolFormer's image processor: pictures are resized by 1 / crop_pct, then cut."""

from posexport.errors import PosexportError
from posexport.images import processor
from posexport.images.pictures import Picture
from posexport.images.plain import CLIPImageProcessor
from posexport.images.processor import Channels
from posexport.images.sizes import by_shortest_edge


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

"""LeViT's image processor: the shortest edge is made 256/224 of the one that size names."""

from posexport.images import processor
from posexport.images.pictures import Picture
from posexport.images.plain import CLIPImageProcessor
from posexport.images.processor import Channels
from posexport.images.sizes import by_shortest_edge


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

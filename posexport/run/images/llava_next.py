"""The image processors of LLaVA-NeXT and LLaVA-OneVision: the whole picture, then tiles of it at a higher resolution.

The picture is fitted into the most suitable of several sizes and padded; the tiles of that size follow row by row.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.images import operations, processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import default_size
from posexport.run.images.processors import CLIPImageProcessor, squared
from posexport.run.images.sizes import SizeSetting
from posexport.run.tiles import IMAGE_SIZES, best_size

_STEPS = range(384, 2305, 384)
_NEXT = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_ONEVISION = tuple((height, width) for height in _STEPS for width in _STEPS)


class LlavaNextImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Of llava_next; ``image_grid_pinpoints``: the heights and widths that a picture may get, whole tiles each."""

    UNREAD = frozenset({"pad_size"})
    WITHOUT_EFFECT = frozenset({"aspect_ratio_setting"})

    do_pad: bool | None = True
    image_grid_pinpoints: tuple[tuple[int, int], ...] = _NEXT

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """``pixel_values`` [pictures, tiles, channels, edge, edge], a row for each picture, and ``image_sizes``.

        Tiles of zeros follow those of pictures that have fewer than another.
        """
        cut = [processor.stacked([self.one(tile) for tile in self.tiles(picture)]) for picture in pictures]
        most = max(map(len, cut))
        rows = [np.pad(tiles, ((0, most - len(tiles)), *[(0, 0)] * 3)) for tiles in cut]
        sizes = np.array([picture.shape[1:] for picture in pictures], np.int64)
        return {"pixel_values": np.stack(rows), IMAGE_SIZES: sizes}

    def tiles(self, picture: Picture) -> list[Picture]:
        """The whole picture, stretched to a tile, and the tiles of the enlarged one, row by row."""
        edge, (height, width) = self._edge, best_size(picture.shape[1:], self.image_grid_pinpoints)
        rows, columns = fitted(picture.shape[1:], (height, width))
        top, left = (height - rows) // 2, (width - columns) // 2
        operations.check_area(height, width)
        around = ((0, 0), (top, height - rows - top), (left, width - columns - left))
        large = np.pad(self.resized_to(picture, (rows, columns)), around)
        cut = [large[:, y : y + edge, x : x + edge] for y in range(0, height, edge) for x in range(0, width, edge)]
        return [self.resized_to(picture, self._whole), *cut]

    @property
    def _whole(self) -> tuple[int, int]:
        """Height and width of the whole picture before it is prepared like a tile."""
        size = self.sizes("size")
        if "shortest_edge" in size:
            return size["shortest_edge"], size["shortest_edge"]
        return self._edges("size")

    @property
    def _edge(self) -> int:
        return self.sizes("crop_size")["height"] if self.crop_size is not None else self._whole[0]

    def check(self) -> None:
        """Also that every size of pictures is a number of whole tiles."""
        super().check()
        if self.size is None:
            raise PosexportError("size is none; give the edges of the whole picture")
        odd = [list(size) for size in self.image_grid_pinpoints if any(n < 1 or n % self._edge for n in size)]
        if odd or not self.image_grid_pinpoints:
            raise PosexportError(
                f"image_grid_pinpoints has {odd[0] if odd else 'no size'}; give heights and widths that are multiples "
                f"of {self._edge}, the edge of a tile"
            )


class LlavaOnevisionImageProcessor(LlavaNextImageProcessor, frozen=True, kw_only=True):
    """Of llava_onevision; ``whole``: pictures are padded to squares and not cut, as where a prompt has several."""

    size: SizeSetting | None = default_size(height=384, width=384)
    do_center_crop: bool | None = None
    crop_size: SizeSetting | None = None
    image_grid_pinpoints: tuple[tuple[int, int], ...] = _ONEVISION
    whole: bool = False

    def tiles(self, picture: Picture) -> list[Picture]:
        """As `LlavaNextImageProcessor`, or the padded picture alone."""
        return [squared(picture, self.image_mean)] if self.whole else super().tiles(picture)


def fitted(picture: Sequence[int], size: Sequence[int]) -> tuple[int, int]:
    """Height and width of a picture (height, width) that fills ``size`` along one edge."""
    scales = size[0] / picture[0], size[1] / picture[1]
    if scales[1] < scales[0]:
        return min(math.ceil(picture[0] * scales[1]), size[0]), size[1]
    return size[0], min(math.ceil(picture[1] * scales[0]), size[1])
